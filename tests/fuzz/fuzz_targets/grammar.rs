//! Any text as a JSON schema, an expression, or a grammar in Lark or GBNF: refused in one line, or
//! compiled; and then any allowed tokens as an answer.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use trail_grammar::{GrammarCompiler, GrammarSpec};
use trail_runtime::engine::Constraint;
use trail_runtime::model::ModelConfig;
use trail_runtime::text::Tokenizer;

/// Tokens of an answer.
const LIMIT: usize = 24;

#[derive(Arbitrary, Debug)]
struct Input {
    kind: u8,
    text: String,
    choices: Vec<u16>,
}

static COMPILER: LazyLock<(GrammarCompiler, ModelConfig)> = LazyLock::new(|| {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo"));
    let config = ModelConfig::load(folder).expect("the demo's shapes");
    let tokenizer = Tokenizer::load(folder, config.vocab_size).expect("the demo tokenizer");
    (GrammarCompiler::new(Arc::new(tokenizer), &config), config)
});

fuzz_target!(|input: Input| {
    let (compiler, config) = &*COMPILER;
    let spec = match input.kind % 4 {
        0 => match serde_json::from_str(&input.text) {
            Ok(schema) => GrammarSpec::JsonSchema { schema, compact: input.kind >= 128 },
            Err(_) => return,
        },
        1 => GrammarSpec::Regex(input.text),
        2 => GrammarSpec::Choice(input.text.split(',').map(str::to_owned).collect()),
        _ => GrammarSpec::grammar(input.text),
    };
    let grammar = match compiler.compile(&spec) {
        Ok(grammar) => grammar,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            return;
        }
    };
    let mut matcher = grammar.matcher(&config.eos_tokens);
    let (mut forced, mut choices) = (Vec::new(), input.choices.into_iter());
    while forced.len() < LIMIT {
        let Ok(()) = matcher.force(&mut forced) else { return };
        if forced.iter().any(|id| config.eos_tokens.contains(id)) {
            return;
        }
        let Ok(mask) = matcher.mask() else { return };
        let allowed: Vec<u32> =
            (0..config.vocab_size as u32).filter(|&id| mask.allows(id)).collect();
        assert!(!allowed.is_empty(), "a mask without tokens is a fault");
        let Some(choice) = choices.next() else { return };
        let token = allowed[usize::from(choice) % allowed.len()];
        if config.eos_tokens.contains(&token) || matcher.accept(token).is_err() {
            return;
        }
        forced.push(token);
    }
});
