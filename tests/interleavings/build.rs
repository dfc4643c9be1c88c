fn main() {
    println!("cargo::rustc-cfg=interleavings");
    println!("cargo::rerun-if-changed=build.rs");
}
