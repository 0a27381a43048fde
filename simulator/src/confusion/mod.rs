//! Simulated predictions for requests of known length, with the measured errors of a probe.
//!
//! With random weights and forced lengths there is nothing to predict; the effect of predictions on
//! a schedule can still be measured, if their errors are realistic. A [`Confusion`] is the
//! confusion matrix of a probe's refined predictions on held-out prompts, in ten bins: first for
//! the whole prompt, then token by token *given the previously predicted bin*. So errors persist as
//! they do in the probe: a filter that is wrong stays wrong for a while, where independent draws
//! would be corrected by the next token. The first tokens have counts of their own, as their errors
//! are larger.
//!
//! The counts are of refined predictions and include the effect of the filter's constants. Two
//! approximations: a prediction between two bins (one in ten) becomes the middle of one; and the
//! prompt-only prediction is drawn independently of the probe's.

use std::collections::BTreeMap;
use std::fmt;

use trail_platform::rng::Rng;

/// Bins of remaining tokens.
pub const BINS: usize = 10;

/// Tokens at the end of the last bin; longer remainders count as this.
pub const MAX_TOKENS: u32 = 512;

/// Number of output tokens that use the `early` counts.
pub const EARLY_TOKENS: u32 = 16;

/// Number of predictions of each bin.
pub(crate) type Row = [u32; BINS];

/// Condition of a row of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// A prompt-only predictor, of outputs with a length in this bin.
    Length(usize),
    /// The probe on the prompt, of outputs with a length in this bin.
    Prompt(usize),
    /// The probe within the first tokens: (true bin, previously predicted bin).
    Early(usize, usize),
    /// The probe after them.
    Late(usize, usize),
}

/// Confusion counts of a probe and of a prompt-only predictor.
#[derive(Clone, Debug)]
pub struct Confusion {
    rows: BTreeMap<State, Row>,
    /// Lengths of the measured outputs, tokens.
    lengths: Vec<u32>,
    /// Mean absolute error of the refined predictions over all their tokens, tokens.
    mae: f64,
}

/// A malformed table of counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the text, from 1; 0 if an entry is missing.
    pub line: usize,
    /// Description of the error.
    pub why: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for ParseError {}

impl Confusion {
    /// The confusion of the bundled probe and predictor on 400 of the bundled held-out prompts. The
    /// runtime's test `confusion` measures it with the engine and checks that it is current.
    pub fn demo() -> Confusion {
        Confusion::parse(DEMO).expect("the checked-in counts are whole: a test reads them")
    }

    /// Parses lines in the form of the checked-in file: `length`, `prompt`, `early` or `late`, the
    /// true bin, for the latter two the previously predicted bin, and `bin:count` for each
    /// predicted bin; one line `lengths`, one `mae`.
    pub fn parse(text: &str) -> Result<Confusion, ParseError> {
        let mut read = Confusion { rows: BTreeMap::new(), lengths: Vec::new(), mae: f64::NAN };
        for (number, line) in text.lines().enumerate() {
            read.line(line).map_err(|why| ParseError { line: number + 1, why })?;
        }
        let has = |state: State| read.rows.contains_key(&state);
        let all = (0..BINS).all(|bin| has(State::Length(bin)) && has(State::Prompt(bin)));
        let late = (0..BINS).all(|bin| read.pooled(bin, u32::MAX).iter().any(|&count| count > 0));
        match all && late && !read.lengths.is_empty() && read.mae.is_finite() {
            true => Ok(read),
            false => {
                Err(ParseError { line: 0, why: "some true bin, or lengths or mae, is missing" })
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.split_whitespace();
        let Some(kind) = words.next().filter(|kind| !kind.starts_with('#')) else { return Ok(()) };
        let number = |word: &str| word.parse().map_err(|_| "not a number");
        match kind {
            "lengths" => self.lengths = words.map(number).collect::<Result<_, _>>()?,
            "mae" => {
                let word = words.next().ok_or("no number")?;
                self.mae = word.parse().map_err(|_| "not a number")?;
            }
            _ => {
                let mut bin = || words.next().and_then(bin_named).ok_or("no bin");
                let state = match kind {
                    "length" => State::Length(bin()?),
                    "prompt" => State::Prompt(bin()?),
                    "early" => State::Early(bin()?, bin()?),
                    "late" => State::Late(bin()?, bin()?),
                    _ => return Err("unknown kind"),
                };
                self.rows.insert(state, row(words)?);
            }
        }
        Ok(())
    }

    /// Lengths of the measured outputs, tokens.
    pub fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    /// Measured mean absolute error over all tokens of those outputs, tokens.
    pub fn mae(&self) -> f64 {
        self.mae
    }

    /// Draws a prompt-only prediction for an output of `length` tokens: total tokens.
    pub fn length(&self, length: u32, rng: &mut Rng) -> f32 {
        middle(draw(&self.rows[&State::Length(bin_of(length))], rng))
    }

    /// Draws the probe's predictions for an output of `length` tokens: element g is the expected
    /// number of remaining tokens after g generated ones.
    pub fn refined(&self, length: u32, rng: &mut Rng) -> Vec<f32> {
        let mut predicted = draw(&self.first_counts(bin_of(length)), rng);
        let mut predictions = vec![middle(predicted)];
        for generated in 1..length {
            predicted =
                draw(&self.next_counts(bin_of(length - generated), generated, predicted), rng);
            predictions.push(middle(predicted));
        }
        predictions
    }

    /// Counts of the probe's predictions from the prompt, of outputs with a length in `bin`.
    pub(crate) fn first_counts(&self, bin: usize) -> Row {
        self.rows[&State::Prompt(bin)]
    }

    /// Counts of its predictions after `generated` tokens, with a remainder in `bin`, where it
    /// predicted `predicted` a token before.
    pub(crate) fn next_counts(&self, bin: usize, generated: u32, predicted: usize) -> Row {
        let state = match generated <= EARLY_TOKENS {
            true => State::Early(bin, predicted),
            false => State::Late(bin, predicted),
        };
        self.rows.get(&state).copied().unwrap_or_else(|| self.pooled(bin, generated))
    }

    /// Counts for the true bin `bin`, summed over all previously predicted bins: for a pair without
    /// counts. Late counts if there are no early ones.
    fn pooled(&self, bin: usize, generated: u32) -> Row {
        let sum = |state: fn(usize, usize) -> State| {
            let rows = (0..BINS).filter_map(|predicted| self.rows.get(&state(bin, predicted)));
            rows.fold([0; BINS], |sum, row| std::array::from_fn(|i| sum[i] + row[i]))
        };
        let early = sum(State::Early);
        match generated <= EARLY_TOKENS && early != [0; BINS] {
            true => early,
            false => sum(State::Late),
        }
    }
}

/// The bin of `tokens`.
pub fn bin_of(tokens: u32) -> usize {
    let bin = u64::from(tokens) * BINS as u64 / u64::from(MAX_TOKENS);
    (bin as usize).min(BINS - 1)
}

/// Midpoint of a bin, tokens.
fn middle(bin: usize) -> f32 {
    MAX_TOKENS as f32 / BINS as f32 * (bin as f32 + 0.5)
}

fn bin_named(word: &str) -> Option<usize> {
    word.parse().ok().filter(|&bin| bin < BINS)
}

/// Reads `bin:count` words.
fn row<'a>(words: impl Iterator<Item = &'a str>) -> Result<Row, &'static str> {
    let mut row = [0; BINS];
    for word in words {
        let (bin, count) = word.split_once(':').ok_or("expected bin:count")?;
        let bin = bin_named(bin).ok_or("no such bin")?;
        row[bin] = count.parse().map_err(|_| "not a count")?;
    }
    if row.iter().map(|&count| u64::from(count)).sum::<u64>() == 0 {
        return Err("a row without counts");
    }
    Ok(row)
}

/// Draws a bin with probability proportional to its count.
fn draw(row: &Row, rng: &mut Rng) -> usize {
    let mut left = rng.below(row.iter().map(|&count| u64::from(count)).sum());
    for (bin, &count) in row.iter().enumerate() {
        match left.checked_sub(u64::from(count)) {
            Some(rest) => left = rest,
            None => return bin,
        }
    }
    unreachable!("the draw is below the sum")
}

const DEMO: &str = include_str!("demo.txt");

#[cfg(test)]
mod tests;
