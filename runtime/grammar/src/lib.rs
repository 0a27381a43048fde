//! Constraints on answers: a JSON schema, a regular expression, a list of choices, a grammar, and
//! rules on single tokens.
//!
//! A [`GrammarCompiler`] knows a model's tokenizer and makes a [`Grammar`] of a [`GrammarSpec`];
//! [`TokenRules`] need no grammar. Both are a
//! [`Constraint`](trail_runtime::engine::Constraint) of a request, alone or [`Both`] together.
//! Masks are llguidance's (Microsoft, MIT licence): a lexer by derivatives, an Earley parser above
//! it, and a walk over the trie of the vocabulary.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{path::Path, sync::Arc};
//! use trail_grammar::{GrammarCompiler, GrammarSpec};
//! use trail_runtime::engine::{Engine, EngineConfig, Request};
//! use trail_runtime::model::Model;
//! use trail_runtime::text::Tokenizer;
//! let path = Path::new("assets/demo");
//! let model = Arc::new(Model::load(path)?);
//! let tokenizer = Arc::new(Tokenizer::load(path, model.config.vocab_size)?);
//! let compiler = GrammarCompiler::new(tokenizer, &model.config);
//! let engine = Engine::new(model, EngineConfig::default())?;
//! let mut request = Request::new(vec![1, 2, 3], 64);
//! request.constraint = Some(compiler.compile(&GrammarSpec::Regex("[0-9]{4}".into()))?);
//! let answer = engine.submit(request)?;
//! # let _ = answer;
//! # Ok(()) }
//! ```

mod after_reasoning;
mod both;
mod compiler;
mod gbnf;
mod grammar;
mod schema_limits;
mod schema_paths;
mod spec;
mod token_rules;
mod vocabulary;

pub use after_reasoning::AfterReasoning;
pub use both::Both;
pub use compiler::{GrammarCompiler, MAX_SPEC_BYTES, WHITESPACE};
pub use grammar::Grammar;
pub use spec::{GrammarError, GrammarSpec};
pub use token_rules::TokenRules;
