//! A server clock that can be set while the server runs. libfaketime cannot do this: it clashes with the server's jemalloc.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::redis_server::RedisServer;
use crate::scratch_dir::ScratchDir;

/// The clock of one server.
pub struct ServerClock {
    dir: ScratchDir,
}

impl ServerClock {
    /// Starts a server whose clock can be set, with these arguments. `None`, with a word on the standard error, without a C compiler.
    pub async fn start(arguments: &[&str]) -> Option<(Self, RedisServer)> {
        let dir = ScratchDir::new();
        let source = dir.path().join("clock_shim.c");
        std::fs::write(&source, include_str!("clock_shim.c")).unwrap();
        let library = dir.path().join("clock_shim.so");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl");
        if !compiler.status().is_ok_and(|status| status.success()) {
            // Not eprintln!, whose text is shown for tests that fail only.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: without a C compiler (cc), no server clock can be set"
            );
            return None;
        }
        let clock = Self { dir };
        clock.set(0);
        let env = [("LD_PRELOAD", library), ("CLOCK_OFFSET_FILE", clock.file())];
        let server = RedisServer::with_env(arguments, &env).await;
        Some((clock, server))
    }

    /// Sets the clock so many seconds ahead of the true time.
    pub fn set(&self, seconds: i64) {
        // In place: the server maps this file.
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.file());
        file.unwrap().write_all(&seconds.to_ne_bytes()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }
}
