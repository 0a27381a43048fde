//! Predictions for a request whose length is known, as wrong as a probe's were measured to be.
//!
//! Where a model has random weights and forced lengths, nothing can be predicted; what a scheduler makes
//! of predictions can still be measured, if they come with honest errors. A [`Confusion`] counts what a
//! probe's refined predictions took for what, on held-out prompts, in ten bins: first by the whole
//! prompt, then token by token *given the bin it said before*. Errors so persist as they do in truth: a
//! filter that is wrong stays wrong for a while, where independent draws would be set right by the next
//! token. The first tokens are counted apart, as then little is known yet.
//!
//! The counts are of refined predictions, so the filter's constants are in them. What is lost: a
//! prediction between two bins (one in ten) becomes the middle of one; and the prompt-only prediction is
//! drawn apart from the probe's.

use std::collections::BTreeMap;
use std::fmt;

use trail_base::rng::Rng;

/// Bins of remaining tokens.
pub const BINS: usize = 10;

/// Tokens at the end of the last bin; more count as this.
pub const MAX_TOKENS: u32 = 512;

/// Output tokens that count as the first.
pub const EARLY_TOKENS: u32 = 16;

/// How often each bin was said.
type Row = [u32; BINS];

/// What a row of counts is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// A prompt-only predictor, of outputs with a length in this bin.
    Length(usize),
    /// The probe on the prompt, of outputs with a length in this bin.
    Prompt(usize),
    /// The probe within the first tokens: (true bin, bin said before).
    Early(usize, usize),
    /// The probe after them.
    Late(usize, usize),
}

/// What a probe took for what.
#[derive(Clone, Debug)]
pub struct Confusion {
    rows: BTreeMap<State, Row>,
    /// Lengths of the outputs it was measured on, tokens.
    lengths: Vec<u32>,
    /// Mean absolute error of the refined predictions over all their tokens, tokens.
    mae: f64,
}

/// Counts that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the text, from 1; 0 if something is missing from the whole.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for ParseError {}

impl Confusion {
    /// That of the bundled probe and predictor, on 400 of the bundled held-out prompts. Measured with the
    /// engine by the test `confusion` of the runtime, which says whether it still is.
    pub fn demo() -> Confusion {
        Confusion::parse(DEMO).expect("the checked-in counts are whole: a test reads them")
    }

    /// Reads lines of the form of the checked-in file: `length`, `prompt`, `early` or `late`, the true
    /// bin, for the latter two the bin said before, and `bin:count` for each bin said then; one line
    /// `lengths`, one `mae`.
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

    /// Lengths of the outputs it was measured on, tokens.
    pub fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    /// Mean absolute error that was measured over all their tokens, tokens.
    pub fn mae(&self) -> f64 {
        self.mae
    }

    /// What a prompt-only predictor says of an output of `length` tokens: its length in tokens.
    pub fn length(&self, length: u32, rng: &mut Rng) -> f32 {
        middle(draw(&self.rows[&State::Length(bin_of(length))], rng))
    }

    /// What the probe says of an output of `length` tokens, step by step: element g is the number of
    /// tokens still expected when g are generated.
    pub fn refined(&self, length: u32, rng: &mut Rng) -> Vec<f32> {
        let mut said = draw(&self.rows[&State::Prompt(bin_of(length))], rng);
        let mut predictions = vec![middle(said)];
        for generated in 1..length {
            let bin = bin_of(length - generated);
            let state = match generated <= EARLY_TOKENS {
                true => State::Early(bin, said),
                false => State::Late(bin, said),
            };
            said = match self.rows.get(&state) {
                Some(row) => draw(row, rng),
                None => draw(&self.pooled(bin, generated), rng),
            };
            predictions.push(middle(said));
        }
        predictions
    }

    /// What is said of `bin` whatever was said before: for what was never said before it there. Late
    /// counts if there are no early ones.
    fn pooled(&self, bin: usize, generated: u32) -> Row {
        let sum = |state: fn(usize, usize) -> State| {
            let rows = (0..BINS).filter_map(|said| self.rows.get(&state(bin, said)));
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

/// Tokens in the middle of a bin.
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

/// A bin, as likely as it was counted.
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
