//! The example as a process, the service behind Envoy, and Envoy itself.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use support::example::program_of;
use support::ports::free_port;
use support::scratch_dir::ScratchDir;
use support::supervised::Supervised;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Status;
use tonic::transport::Channel;

/// For conditions that hold soon, unless the machine is busy.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The rules and the settings of a service.
pub(crate) struct Setup {
    dir: ScratchDir,
    redis: Option<String>,
    more: Vec<String>,
}

impl Setup {
    pub(crate) fn new(rules: &str) -> Self {
        let setup = Self {
            dir: ScratchDir::new(),
            redis: None,
            more: Vec::new(),
        };
        std::fs::write(setup.rules(), rules).unwrap();
        setup
    }

    pub(crate) fn on(mut self, redis: &str) -> Self {
        self.redis = Some(redis.to_owned());
        self
    }

    pub(crate) fn with(mut self, more: &[&str]) -> Self {
        self.more
            .extend(more.iter().map(|&argument| argument.to_owned()));
        self
    }

    pub(crate) fn rules(&self) -> PathBuf {
        self.dir.path().join("rules.yaml")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn arguments(&self, command: &mut Command) {
        command.arg("--rules").arg(self.rules()).args(&self.more);
        command.env_remove("REDIS_URL").env_remove("HOSTNAME");
        if let Some(redis) = &self.redis {
            command.env("REDIS_URL", redis);
        }
    }
}

/// A running service. It dies with this value.
pub(crate) struct Service {
    pub(crate) process: Supervised,
    _stdout: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Service {
    pub(crate) fn start(setup: &Setup) -> Self {
        let mut command = Supervised::command(program_of("envoy"), None);
        setup.arguments(&mut command);
        // A busy machine is no outage.
        command.args([
            "--listen",
            "127.0.0.1:0",
            "--drain",
            "0",
            "--timeout",
            "20000",
        ]);
        Self::listening(command)
    }

    pub(crate) fn upstream(redis: &str) -> Self {
        let mut command = Supervised::command(program_of("envoy_upstream"), None);
        command.env("REDIS_URL", redis).env("PORT", "0");
        Self::listening(command)
    }

    /// Starts a program that prints its address.
    pub(crate) fn listening(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        let mut process = Supervised::spawn(command);
        let mut stdout = BufReader::new(process.take_stdout().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it has ended");
            if let Some(rest) = line.strip_prefix("listening on http://") {
                break rest.split(',').next().unwrap().to_owned();
            }
        };
        Self {
            process,
            _stdout: stdout,
            address,
        }
    }

    pub(crate) async fn channel(&self) -> Channel {
        let channel = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        channel.connect().await.unwrap()
    }

    pub(crate) fn terminate(&self) {
        self.process.terminate();
    }

    pub(crate) async fn asked(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel().await);
        client
            .should_rate_limit(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub(crate) async fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.asked(request).await.unwrap()
    }

    /// The body of a response over HTTP.
    pub(crate) async fn get(&self, path: &str, headers: &str) -> (u16, String) {
        get(&self.address, path, headers).await
    }

    fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap()
    }
}

/// A request with these descriptors, in the domain `edge`.
pub(crate) fn request(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// Sends a request over HTTP/1. Returns the status, and the whole response in lower case.
pub(crate) async fn get(address: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, response.to_lowercase())
}

/// A running Envoy with the configuration of the example.
pub(crate) struct Envoy {
    _process: Supervised,
    _dir: ScratchDir,
    pub(crate) address: String,
}

impl Envoy {
    /// Returns the path of the program; `None`, after a word, where it cannot be had.
    pub(crate) fn program() -> Option<PathBuf> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/envoy.sh");
        let output = Command::new(script).output().unwrap();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("passed over: there is no Envoy, and none can be downloaded: {why}");
            return None;
        }
        Some(String::from_utf8(output.stdout).unwrap().trim().into())
    }

    pub(crate) async fn start(program: &Path, services: [&Service; 2], upstream: &Service) -> Self {
        let dir = ScratchDir::new();
        let port = free_port();
        let example = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/envoy.yaml"));
        let config = example
            // A busy machine is no outage.
            .replace("timeout: 0.5s", "timeout: 20s")
            .replace("max_interval: 0.25s", "max_interval: 20s")
            .replace("port_value: 10000", &format!("port_value: {port}"))
            .replace(
                "port_value: 8081",
                &format!("port_value: {}", services[0].port()),
            )
            .replace(
                "port_value: 8082",
                &format!("port_value: {}", services[1].port()),
            )
            .replace(
                "port_value: 8080",
                &format!("port_value: {}", upstream.port()),
            );
        let path = dir.path().join("envoy.yaml");
        std::fs::write(&path, config).unwrap();
        let mut command = Supervised::command(program, Some(dir.path()));
        command.args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "error",
            "-c",
        ]);
        command.arg(&path).stderr(Stdio::null());
        let envoy = Self {
            _process: Supervised::spawn(command),
            _dir: dir,
            address: format!("127.0.0.1:{port}"),
        };
        support::eventually("Envoy answers", LONG, async || {
            TcpStream::connect(&envoy.address).await.is_ok()
        })
        .await;
        envoy
    }

    pub(crate) async fn get(&self, path: &str, headers: &str) -> (u16, String) {
        get(&self.address, path, headers).await
    }
}
