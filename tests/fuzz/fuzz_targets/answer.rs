//! An answer in deltas, with zero bytes between: its reasoning, content and calls are those of the
//! whole text, in every format. Seeds are text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_server::{ReasoningFormat, ToolFormat, answer_parts};

const TOOLS: [ToolFormat; 5] = [
    ToolFormat::Hermes,
    ToolFormat::Llama3Json,
    ToolFormat::Pythonic,
    ToolFormat::Mistral,
    ToolFormat::Harmony,
];
const REASONING: [ReasoningFormat; 4] = [
    ReasoningFormat::DeepseekR1,
    ReasoningFormat::Qwen3,
    ReasoningFormat::Harmony,
    ReasoningFormat::Text,
];

fuzz_target!(|text: &str| {
    let deltas: Vec<&str> = text.split('\0').collect();
    let whole = deltas.concat();
    for tools in TOOLS {
        for reasoning in REASONING {
            let expected = answer_parts(tools, reasoning, &[&whole]);
            assert_eq!(answer_parts(tools, reasoning, &deltas), expected);
        }
    }
});
