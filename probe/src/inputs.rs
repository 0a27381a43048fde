//! Inputs of the probe beside the activation of a token.

use std::fmt;
use std::str::FromStr;

use crate::line::Line;

/// Inputs of a probe beside the activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inputs {
    /// The mean over the prompt's activations, and the logarithm of the prompt's length. Constant
    /// for an answer: its share of the first layer is computed once ([`PromptSums`]).
    pub prompt: bool,
    /// The [class of age](crate::age_class).
    pub age: bool,
}

impl Inputs {
    /// Every set of inputs, the activation alone first.
    pub const ALL: [Inputs; 4] = [
        Inputs { prompt: false, age: false },
        Inputs { prompt: false, age: true },
        Inputs { prompt: true, age: false },
        Inputs { prompt: true, age: true },
    ];
}

impl fmt::Display for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.prompt, self.age) {
            (false, false) => "activation",
            (false, true) => "activation+age",
            (true, false) => "activation+prompt",
            (true, true) => "activation+prompt+age",
        })
    }
}

impl FromStr for Inputs {
    type Err = String;

    fn from_str(text: &str) -> Result<Inputs, String> {
        let found = Inputs::ALL.into_iter().find(|inputs| inputs.to_string() == text);
        found.ok_or_else(|| {
            let all = Inputs::ALL.map(|inputs| inputs.to_string()).join(", ");
            format!("no inputs {text}: one of {all}")
        })
    }
}

/// The logarithm of a prompt's length, `tokens`.
pub fn log_length(tokens: u32) -> f32 {
    (tokens.max(1) as f32).ln()
}

/// A prompt's share of the sums of the first layer, by unit: empty for a head that does not read
/// the prompt.
#[derive(Clone, Debug)]
pub struct PromptSums(pub(crate) Box<[Line]>);

/// The inputs of a row beside its activation.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Output tokens fed so far; 0 for the mean over the prompt.
    pub generated: u32,
    /// The share of its request's prompt ([`Head::read_prompt`](crate::Head::read_prompt)).
    pub prompt: Option<&'a PromptSums>,
}

/// Rows of a pass.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// `[rows, d]`.
    pub activations: &'a [f32],
    /// The inputs of each row beside its activation.
    pub beside: &'a (dyn Fn(usize) -> Beside<'a> + Sync),
}

impl<'a> Rows<'a> {
    /// Rows of `activations` for a head that reads nothing else.
    pub fn of(activations: &'a [f32]) -> Rows<'a> {
        Rows { activations, beside: &nothing }
    }
}

fn nothing<'a>(_row: usize) -> Beside<'a> {
    Beside::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for inputs in Inputs::ALL {
            assert_eq!(inputs.to_string().parse(), Ok(inputs));
        }
        assert!("age".parse::<Inputs>().is_err_and(|why| why.contains("activation+age")));
    }
}
