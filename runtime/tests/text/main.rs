//! Tokenizers and chat templates.

mod growth;
mod safety;
mod template_limits;
mod templates;
mod transformers;
