//! The program on a GPU that hangs: a kernel of the emulator never ends.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Server, receive};
use crate::gpu::KV;

#[test]
fn a_server_whose_gpu_hangs_ends_its_streams_and_itself_with_its_code() {
    let hangs = [("TRAIL_EMU_FAIL", "hang:1500")];
    let options = ["--device", "cuda", "--max-running", "4", "--device-timeout", "12"];
    let mut server = Server::start_in(&[&options[..], &KV].concat(), &hangs);
    let body = json!({ "prompt": "Count from 1 to 9.", "max_tokens": 40, "stream": true });
    let mut begin = Instant::now();
    let failed = (0..60).find_map(|_| {
        begin = Instant::now();
        let (status, text) = receive(server.begin("/v1/completions", &body));
        (status != 200 || text.contains("data: {\"error\"")).then_some((status, text))
    });
    // In flight the answer ends with an error object; one that comes later is refused.
    let (status, text) = failed.expect("an answer that fails");
    assert!(status == 200 || status == 503, "{text}");
    assert!(text.contains("server_error"), "{text}");
    let (status, output) = server.end();
    assert_eq!(status.code(), Some(3), "{output}");
    let last = output.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: the engine broke down: waiting for step "), "{output}");
    assert!(begin.elapsed() < Duration::from_secs(12 + 15), "{output}");
}
