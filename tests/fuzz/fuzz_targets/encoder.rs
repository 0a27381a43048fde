//! Any bytes as an encoder's configuration, tokenizer and weights, with a zero byte between two of
//! these: refused in one line, or an encoder that embeds a text.
#![no_main]

use libfuzzer_sys::fuzz_target;

// A panic of the tokenizers crate is an error of its caller; one that nothing catches still aborts.
fuzz_target!(init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))), |bytes: &[u8]| {
    let mut files = bytes.splitn(3, |&byte| byte == 0);
    let [config, tokenizer, weights] = [(); 3].map(|()| files.next().unwrap_or_default());
    if let Err(error) = trail_encoder::check(config, tokenizer, weights) {
        assert_eq!(error.to_string().lines().count(), 1);
    }
});
