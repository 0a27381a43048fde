//! A server for one test, on a free port.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::deadline::Deadline;
use super::{PROGRAM, http};

/// A running `trail-rt serve` with the demo model; killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// Kept open, as the server may still write to it.
    stderr: BufReader<ChildStderr>,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a server with further `options`, on one thread, as tests run in parallel.
    pub(crate) fn start(options: &[&str]) -> Self {
        Server::start_in(options, &[])
    }

    /// Starts a server with further `options` and environment variables.
    pub(crate) fn start_in(options: &[&str], environment: &[(&str, &str)]) -> Self {
        Server::spawn(Command::new(PROGRAM).envs(environment.iter().copied()), options)
    }

    /// Starts a proxy with further `options`.
    pub(crate) fn proxy(options: &[&str]) -> Self {
        Server::proxy_in(options, &[])
    }

    /// Starts a proxy with further `options` and variables of the environment.
    pub(crate) fn proxy_in(options: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(PROGRAM);
        let command = command.envs(environment.iter().copied());
        Server::listening(command.args(["proxy", "--listen", "127.0.0.1:0"]).args(options))
    }

    /// Starts a server under a limit of the shell, such as `-n 64`.
    pub(crate) fn start_under(limit: &str, options: &[&str]) -> Self {
        let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
        Server::spawn(Command::new("sh").args(["-c", &script, PROGRAM]), options)
    }

    fn spawn(command: &mut Command, options: &[&str]) -> Self {
        Server::listening(command.args(["serve", "--port", "0", "--threads", "1"]).args(options))
    }

    /// Starts `command` and waits until it listens.
    fn listening(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let _deadline = Deadline::of(child.id());
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut output = String::new();
        while !output.contains(" on http") {
            assert!(
                stderr.read_line(&mut output).expect("stderr is text") > 0,
                "no address: {output}"
            );
        }
        let address = output.trim().rsplit("://").next().expect("an address");
        // The end of a line of JSON.
        let address = address.trim_end_matches("\"}");
        // A Unix socket has a path.
        let none = SocketAddr::from(([127, 0, 0, 1], 0));
        let address =
            if address.starts_with('/') { none } else { address.parse().expect("a port") };
        Server { child, stderr, address }
    }

    /// Sends a GET; returns status and body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        http::receive(http::send(self.address, "GET", path, ""))
    }

    /// Sends a request; returns status and body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = http::receive(http::send(self.address, method, path, body));
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Sends a request with further `headers`.
    pub(crate) fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> http::Response {
        http::Response::read(&mut http::send_with(self.address, method, path, headers, body))
    }

    /// Sends a POST that must succeed; returns the body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.request("POST", path, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Sends a POST and returns without waiting for the response.
    pub(crate) fn begin(&self, path: &str, body: &Value) -> TcpStream {
        http::send(self.address, "POST", path, &body.to_string())
    }

    /// Sends a POST and returns the chunks of the stream, which must end with `[DONE]`.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let (status, text) = http::receive(self.begin(path, &body));
        assert_eq!(status, 200, "{text}");
        pieces(&text)
    }

    /// Reads a metric; 0 if it is not there.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.metric_of(name).unwrap_or(0.0)
    }

    /// Reads the metric with this name and these labels.
    pub(crate) fn metric_of(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics");
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok())
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != value {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process's number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Largest resident memory so far, bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).map(str::parse::<u64>);
        kib.expect("the peak").expect("a number") << 10
    }

    /// Reads the next line of stderr.
    pub(crate) fn line(&mut self) -> String {
        let _deadline = Deadline::of(self.child.id());
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("stderr is text");
        line
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal, such as `-HUP`.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args([signal, &pid]).status().expect("kill starts");
        assert!(killed.success());
    }

    /// Waits for the process to end; returns its status and the rest of stderr.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the process is a child") {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the process goes on");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut output = String::new();
        self.stderr.read_to_string(&mut output).expect("stderr is text");
        (status, output)
    }

    /// Reads a file of the process in `/proc`, such as `status`.
    pub(crate) fn proc(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.child.id());
        std::fs::read_to_string(path).expect("the process runs")
    }

    /// Memory in MB by a field of `/proc/PID/status`: `VmRSS` now, `VmHWM` at most so far.
    pub(crate) fn megabytes(&self, field: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kilobytes.expect("a number of kB") * 1024.0 / 1e6
    }

    /// Waits until the process has `most` open files or fewer.
    pub(crate) fn wait_for_files(&self, max: usize) {
        let start = Instant::now();
        while self.files() > max {
            assert!(start.elapsed() < Duration::from_secs(30), "{} files are open", self.files());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Number of open files of the process, sockets included.
    pub(crate) fn files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).expect("the process runs").count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The JSON objects of a stream of server-sent events.
pub(crate) fn pieces(text: &str) -> Vec<Value> {
    let data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (last, data) = data.split_last().expect("events");
    assert_eq!(*last, "[DONE]", "{text}");
    data.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect()
}
