//! Tokenizers and chat templates.

mod safety;
mod template_limits;
mod templates;
mod transformers;
