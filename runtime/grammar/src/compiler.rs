//! From a specification to a grammar.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{JsonCompileOptions, ParserFactory};
use serde_json::Value;
use trail_runtime::model::ModelConfig;
use trail_runtime::text::Tokenizer;

use crate::grammar::{Grammar, MAX_LEXER_STATES, first_line};
use crate::vocabulary::Vocabulary;
use crate::{GrammarError, GrammarSpec, gbnf, schema_limits, schema_paths};

/// Largest specification, bytes of its JSON or text. Larger ones take over 200 ms to compile.
pub const MAX_SPEC_BYTES: usize = 256 << 10;
/// Largest one that is kept for later requests, as it can take a hundred times its bytes.
const MAX_KEPT_BYTES: usize = 32 << 10;
/// Stack of the thread that compiles, bytes; pages are taken as they are used.
const STACK: usize = 256 << 20;
/// Whitespace between the parts of a JSON: a space, or a new line with an indentation (llama.cpp's,
/// and deeper). A small model would go on with unbounded whitespace to the end of its tokens.
pub const WHITESPACE: &str = r"\x20|\x0A[\x20\x09]{0,40}";
/// Grammars that are kept for later requests.
const KEPT: usize = 16;
/// Work of the lexer's construction and of one mask, in llguidance's units: 50,000 and 14,000 a
/// millisecond.
const LEXER_FUEL: u64 = 1_000_000;
const STEP_FUEL: u64 = 200_000;
/// Items of the Earley parser in one mask, and in one row of it. An ambiguous grammar has a number
/// that grows with the square of the answer's length: its masks take up to 18 ms before the answer
/// fails, 370 ms with llguidance's 50,000 and 2,000. An object takes 4 in a row for each property
/// that is optional.
const STEP_ITEMS: usize = 12_500;
const ROW_ITEMS: usize = 1_000;
const GRAMMAR_SIZE: usize = 200_000;

/// Compiles grammars for one model.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos: Vec<u32>,
    /// Made for the first grammar, as it takes up to a second.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// The last ones, newest last.
    kept: Mutex<Vec<(GrammarSpec, Arc<Grammar>)>>,
}

impl GrammarCompiler {
    /// A compiler for the model of `config`, whose tokenizer is `tokenizer`.
    pub fn new(tokenizer: Arc<Tokenizer>, config: &ModelConfig) -> GrammarCompiler {
        GrammarCompiler {
            tokenizer,
            vocab_size: config.vocab_size,
            eos: config.eos_tokens.clone(),
            factory: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    /// Compiles `spec`, or finds it among the last ones. Takes from under a millisecond to some
    /// hundred; the first call up to a second more.
    ///
    /// # Errors
    ///
    /// It is malformed, allows no answer, has a part that is not supported, or is beyond the
    /// limits.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(of, _)| of == spec) {
            kept[at..].rotate_left(1);
            return Ok(kept[kept.len() - 1].1.clone());
        }
        drop(kept);
        let bytes = size(spec)?;
        match spec {
            GrammarSpec::JsonSchema { schema, .. } => schema_limits::check(schema)?,
            GrammarSpec::Lark(text) => schema_limits::check_lark(text)?,
            _ => {}
        }
        let grammar = Arc::new(self.on_a_large_stack(spec)?);
        if bytes > MAX_KEPT_BYTES {
            return Ok(grammar);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((spec.clone(), grammar.clone()));
        Ok(grammar)
    }

    /// Compiles on a thread whose stack has room for the recursion of any `spec` within the limits:
    /// a chain of references, or of nested arrays, costs some kilobytes for each.
    fn on_a_large_stack(&self, spec: &GrammarSpec) -> Result<Grammar, GrammarError> {
        thread::scope(|scope| {
            let builder = thread::Builder::new().name("trail-grammar".into()).stack_size(STACK);
            let thread = builder.spawn_scoped(scope, || self.compile_new(spec));
            let thread = thread.map_err(|error| {
                GrammarError(format!("no thread to compile on ({error}): try again later"))
            })?;
            // The panic hook has reported it.
            thread.join().unwrap_or_else(|_| Err(GrammarError("it cannot be compiled".into())))
        })
    }

    fn compile_new(&self, spec: &GrammarSpec) -> Result<Grammar, GrammarError> {
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let explain = |message: String| match spec {
            GrammarSpec::JsonSchema { schema, .. } => {
                GrammarError(format!("the JSON schema: {}", schema_paths::locate(schema, &message)))
            }
            GrammarSpec::Choice(_) => GrammarError(format!("the choices: {message}")),
            GrammarSpec::Regex(_) => {
                let why = message.strip_prefix(INVALID_REGEX).unwrap_or(&message);
                GrammarError(format!("the regular expression: {why}"))
            }
            GrammarSpec::Lark(_) | GrammarSpec::Gbnf(_) => {
                GrammarError(format!("the grammar: {message}"))
            }
        };
        let start = factory.create_parser(top_level(spec)?).and_then(|mut start| {
            start.start_without_prompt();
            // The first mask finds a grammar without an answer, and warms the lexer of all.
            start.compute_mask().map(|_| start)
        });
        match start {
            Err(error) => Err(explain(in_words(&reason(&error.to_string())))),
            Ok(start) => Ok(Grammar::new(start, self.vocab_size, &self.eos)),
        }
    }

    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        if self.eos.is_empty() {
            let why =
                "the model has no end-of-sequence token, so that no grammar can end an answer";
            return Err(GrammarError(why.into()));
        }
        let vocabulary = Vocabulary::new(self.tokenizer.clone(), self.vocab_size, &self.eos);
        let vocabulary: TokEnv = Arc::new(vocabulary);
        let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&vocabulary, capabilities, &slices)
            .map_err(|error| GrammarError(first_line(&error.to_string())))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = LEXER_FUEL;
        limits.step_lexer_fuel = STEP_FUEL;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_grammar_size = GRAMMAR_SIZE;
        limits.step_max_items = STEP_ITEMS;
        limits.max_items_in_row = ROW_ITEMS;
        limits.verbose_errors = false;
        Ok(factory)
    }
}

/// `spec` in llguidance's form.
fn top_level(spec: &GrammarSpec) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match spec {
        GrammarSpec::JsonSchema { schema, compact } => {
            let mut schema = match schema {
                Value::Bool(true) => Value::Object(Default::default()),
                schema => schema.clone(),
            };
            let whitespace_pattern = (!compact).then(|| WHITESPACE.to_owned());
            let whitespace_flexible = !compact;
            let options = JsonCompileOptions {
                whitespace_flexible,
                whitespace_pattern,
                ..JsonCompileOptions::default()
            };
            if schema.is_object() {
                options.apply_to(&mut schema);
            }
            TopLevelGrammar::from_json_schema(schema)
        }
        GrammarSpec::Choice(texts) if texts.is_empty() => {
            return Err(GrammarError("there is no choice: give at least one text".into()));
        }
        GrammarSpec::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            TopLevelGrammar::from_regex(&texts.join("|"))
        }
        GrammarSpec::Regex(regex) => TopLevelGrammar::from_regex(regex),
        GrammarSpec::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
        GrammarSpec::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
    })
}

/// llguidance's reason of an end, where it is no sentence.
fn in_words(message: &str) -> String {
    match message {
        "NoExtension" | "NoExtensionBias" => "it allows no answer".into(),
        _ => message.to_owned(),
    }
}

/// Begins the reason of an invalid regular expression.
const INVALID_REGEX: &str = "invalid regex: ";

/// The line of an error that says why: of a regular expression's, which shows the place below the
/// text, the one behind that.
fn reason(message: &str) -> String {
    let mut errors = message.lines().filter_map(|line| line.trim().strip_prefix("error: "));
    match errors.next_back() {
        Some(why) if message.contains("regex parse error") => format!("{INVALID_REGEX}{why}"),
        _ => first_line(message),
    }
}

/// A regular expression that matches `text` alone.
pub(crate) fn literal(text: &str) -> String {
    let escape = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_string(),
        false => format!("\\x{{{:x}}}", u32::from(c)),
    };
    text.chars().map(escape).collect()
}

/// Bytes of `spec`, unless it is beyond the limits.
fn size(spec: &GrammarSpec) -> Result<usize, GrammarError> {
    let bytes = match spec {
        GrammarSpec::JsonSchema { schema, .. } => json_bytes(schema),
        GrammarSpec::Choice(texts) => texts.iter().map(String::len).sum(),
        GrammarSpec::Regex(text) | GrammarSpec::Lark(text) | GrammarSpec::Gbnf(text) => text.len(),
    };
    if bytes > MAX_SPEC_BYTES {
        let limit = MAX_SPEC_BYTES >> 10;
        return Err(GrammarError(format!("it is larger than {limit} KiB: make it smaller")));
    }
    Ok(bytes)
}

/// Bytes of the JSON of `value`, or a number above [`MAX_SPEC_BYTES`].
fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            match self.0 > MAX_SPEC_BYTES {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(bytes.len()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // It fails where the limit is passed.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}
