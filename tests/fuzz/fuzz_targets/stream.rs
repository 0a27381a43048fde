//! UTF-8 assembly: the pieces of a stream of tokens, against one decoding of all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_runtime::text::{Decode, TextStream};

/// Tokens are runs of bytes.
struct Runs<'a>(Vec<&'a [u8]>);

impl Decode for Runs<'_> {
    fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.0[id as usize]).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn is_special(&self, id: u32) -> bool {
        self.0[id as usize].starts_with(b"<special>")
    }
}

fuzz_target!(|bytes: &[u8]| {
    // The first byte of each token is its length, at most 15.
    let (mut tokens, mut rest) = (Vec::new(), bytes);
    while let Some((&length, after)) = rest.split_first() {
        let (token, after) = after.split_at(usize::from(length % 16).min(after.len()));
        tokens.push(token);
        rest = after;
    }
    let runs = Runs(tokens);
    let ids: Vec<u32> = (0..runs.0.len() as u32).collect();
    let mut stream = TextStream::new(&runs);
    let mut sent: String = ids.iter().map(|&id| stream.push(id)).collect();
    sent.push_str(&stream.flush());
    let kept: Vec<u32> = ids.into_iter().filter(|&id| !runs.is_special(id)).collect();
    assert_eq!(sent, runs.decode(&kept));
});
