#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, dead_code)]
#[path = "../benches/fairness/adaptive.rs"]
mod adaptive;
mod common {
    pub mod report {
        #[derive(Debug)]
        pub enum Better {
            Higher,
            Lower,
        }
        #[derive(Debug)]
        pub struct Versus<'a> {
            pub name: &'a str,
            pub measures: &'a str,
            pub ours: f64,
            pub peer: &'a str,
            pub theirs: f64,
            pub ratio: f64,
            pub better: Better,
        }
        impl Versus<'_> {
            pub fn tell(self) {
                println!("{self:?}");
            }
        }
        pub fn figure(name: &str, _: &str, value: f64) {
            println!("figure {name} {value}");
        }
        pub fn note(text: impl AsRef<str>) {
            println!("{}", text.as_ref());
        }
    }
    pub struct Settings {
        pub length: std::time::Duration,
    }
    impl Settings {
        pub fn wants(&self, _: &str) -> bool {
            true
        }
    }
    pub struct Server {
        pub url: String,
    }
    pub struct Bench {
        pub settings: Settings,
        pub server: Server,
        pub runtime: tokio::runtime::Runtime,
    }
}
#[test]
fn fairness_run() {
    let Ok(url) = std::env::var("FAIR_URL") else { return };
    let length =
        std::time::Duration::from_secs_f64(std::env::var("SECONDS").map_or(1.0, |s| s.parse().unwrap()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    adaptive::run(&common::Bench {
        settings: common::Settings { length },
        server: common::Server { url },
        runtime,
    });
}
