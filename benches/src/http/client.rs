//! One request over HTTP/1.1, timed by the chunks of its stream.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use trail_cli::Error;

/// Time for the policy of the start, after a run that may have been interrupted.
const RESET_TIMEOUT: Duration = Duration::from_secs(10);

/// A server.
#[derive(Clone, Debug)]
pub(super) struct Client {
    host: String,
    port: u16,
    /// Path before those of the API.
    base: String,
    key: Option<String>,
    model: String,
    temperature: f64,
    timeout: Duration,
}

/// An answer, by the clock of the client.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// The request's time, seconds from the beginning of the run.
    pub(super) due_s: f64,
    /// Seconds from the request's time to each chunk with text.
    pub(super) chunks_s: Vec<f64>,
    /// Tokens, by the server's count; the chunks if it has none.
    pub(super) tokens: u64,
    /// Seconds from the request's time to its end.
    pub(super) latency_s: f64,
    /// Seconds by which it was sent late.
    pub(super) late_s: f64,
    /// The reason for which there is no whole answer.
    pub(super) error: Option<String>,
}

impl Client {
    /// The server at `url`.
    pub(super) fn new(url: &str, key: Option<String>, timeout: Duration) -> Result<Client, Error> {
        let bad = |why: &str| Error::usage(format!("--url {url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| bad("give http://HOST:PORT"))?;
        if uri.scheme_str() != Some("http") {
            return Err(bad("give http://HOST:PORT; TLS is not measured"));
        }
        let host = uri.host().ok_or_else(|| bad("it has no host"))?.to_owned();
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let port = uri.port_u16().unwrap_or(80);
        Ok(Client { host, port, base, key, model: String::new(), temperature: 1.0, timeout })
    }

    /// Sets the model and the temperature of all requests.
    pub(super) fn set_model(&mut self, name: String, temperature: f64) {
        (self.model, self.temperature) = (name, temperature);
    }

    /// The first model that the server lists.
    pub(super) async fn first_model(&self) -> Result<String, Error> {
        let models = self.call("GET", "/v1/models", None).await.map_err(Error::failed)?;
        let name = models["data"][0]["id"].as_str().map(str::to_owned);
        name.ok_or_else(|| Error::failed("the server lists no model: give --served-model"))
    }

    /// Switches the policy of a trail-rt server.
    pub(super) async fn set_policy(&self, policy: &str) -> Result<(), Error> {
        let body = json!({ "policy": policy, "model": self.model });
        let set = self.call("POST", "/v1/trail/policy", Some(&body)).await;
        set.map(drop).map_err(|why| {
            Error::failed(format!("cannot switch to policy {policy} (--compare): {why}"))
        })
    }

    /// Puts the policy back with which the server began.
    pub(super) async fn reset_policy(&self) -> Result<(), Error> {
        let model = utf8_percent_encode(&self.model, NON_ALPHANUMERIC);
        let path = format!("/v1/trail/policy?model={model}");
        let reset = timeout(RESET_TIMEOUT, self.call("DELETE", &path, None)).await;
        reset.unwrap_or_else(|_| Err("no answer in time".into())).map(drop).map_err(|why| {
            Error::failed(format!("the server keeps the last policy of --compare: {why}"))
        })
    }

    /// Sends a request and reads a JSON object.
    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let exchange = async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            let bytes = response.into_body().collect().await.map_err(|why| why.to_string())?;
            let bytes = bytes.to_bytes();
            match status.is_success() {
                true => serde_json::from_slice(&bytes).map_err(|why| why.to_string()),
                false => Err(refusal(status.as_u16(), &bytes)),
            }
        };
        timeout(self.timeout, exchange).await.unwrap_or_else(|_| Err("no answer in time".into()))
    }

    /// Sends a request on a separate connection.
    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, String> {
        let (host, port) = (self.host.trim_matches(['[', ']']), self.port);
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(|why| format!("cannot connect to {host}:{port}: {why}"))?;
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|why| why.to_string())?;
        tokio::spawn(connection);
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("host", format!("{}:{port}", self.host))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::from(text))).map_err(|why| why.to_string())?;
        sender.send_request(request).await.map_err(|why| why.to_string())
    }

    /// Answers `prompt` as a stream; times count from `begin`.
    pub(super) async fn ask(&self, prompt: &str, limits: (usize, u64), begin: Instant) -> Answer {
        let late_s = begin.elapsed().as_secs_f64();
        let mut answer = Answer { late_s, ..Answer::default() };
        let read = timeout(self.timeout, self.read(prompt, limits, begin, &mut answer)).await;
        answer.error = match read {
            Ok(read) => read.err(),
            Err(_) => Some("no whole answer in time".into()),
        };
        answer.latency_s = begin.elapsed().as_secs_f64();
        answer.tokens = answer.tokens.max(answer.chunks_s.len() as u64);
        answer
    }

    async fn read(
        &self,
        prompt: &str,
        (max_tokens, seed): (usize, u64),
        begin: Instant,
        answer: &mut Answer,
    ) -> Result<(), String> {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": prompt }],
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "seed": seed % (1 << 31),
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let response = self.send("POST", "/v1/chat/completions", Some(&body)).await?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return Err(refusal(status.as_u16(), &bytes));
        }
        let mut lines = Lines::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|why| format!("the stream broke off: {why}"))?;
            let now_s = begin.elapsed().as_secs_f64();
            for line in lines.push(frame.data_ref().map_or(&[], |bytes| &bytes[..])) {
                if take(&line, now_s, answer)? {
                    return Ok(());
                }
            }
        }
        Err("the stream ended before [DONE]".into())
    }
}

/// Takes in a line of a stream; true for its end.
fn take(line: &str, now_s: f64, answer: &mut Answer) -> Result<bool, String> {
    let Some(data) = line.strip_prefix("data:").map(str::trim) else { return Ok(false) };
    if data == "[DONE]" {
        return Ok(true);
    }
    let chunk: Value = serde_json::from_str(data).map_err(|why| format!("a chunk: {why}"))?;
    if let Some(message) = chunk["error"]["message"].as_str() {
        return Err(message.to_owned());
    }
    if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
        answer.tokens = tokens;
    }
    let delta = &chunk["choices"][0]["delta"];
    let has_text = |name: &str| delta[name].as_str().is_some_and(|text| !text.is_empty());
    if has_text("content") || has_text("reasoning_content") {
        answer.chunks_s.push(now_s);
    }
    Ok(false)
}

/// A refusal in the server's words.
fn refusal(status: u16, body: &[u8]) -> String {
    let object: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = object["error"]["message"].as_str().map(str::to_owned);
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect());
    format!("status {status}: {text}")
}

/// Bytes as whole lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|&byte| byte == b'\n') else { return Vec::new() };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_by_lines_whatever_the_pieces() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n: alive\n\
                    data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n\n";
        for size in [1, 2, 7, 1000] {
            let (mut lines, mut answer, mut ended) = (Lines::default(), Answer::default(), false);
            for piece in text.as_bytes().chunks(size) {
                for line in lines.push(piece) {
                    ended |= take(&line, 1.5, &mut answer).expect("sound");
                }
            }
            assert_eq!((answer.chunks_s.as_slice(), answer.tokens, ended), (&[1.5][..], 7, true));
        }
        let error = take("data: {\"error\":{\"message\":\"no\"}}", 0.0, &mut Answer::default());
        assert_eq!(error, Err("no".into()));
    }

    #[test]
    fn urls_are_those_of_plain_http() {
        let new = |url| Client::new(url, None, Duration::from_secs(1));
        let client = new("http://[::1]:81/base/v1/").expect("sound");
        assert_eq!((&*client.host, client.port, &*client.base), ("[::1]", 81, "/base"));
        for url in ["https://a", "127.0.0.1:80", "ftp://a", "http:///x"] {
            assert!(new(url).is_err(), "{url}");
        }
    }
}
