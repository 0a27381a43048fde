//! Recorded requests: a file of one JSON object a line, or of the production traces of others.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trail_platform::quote::quote;

use crate::job::{Job, Refined};
use crate::trace_format::TraceFormat;
use trail_scheduler::{BLOCK_TOKENS, BlockHash};

/// One request of a trace file, and its predictions if they were recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Number of the request, unique in its file.
    pub id: u64,
    /// Arrival, seconds.
    pub arrival_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Output tokens.
    pub output_tokens: u32,
    /// Output tokens predicted from the prompt alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r: Option<f32>,
    /// Predicted remaining tokens, by number of generated ones: one for each output token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Vec<f32>>,
    /// Hashes of the prompt's first full KV blocks, of 16 tokens, as numbers (Mooncake's `hash_ids`
    /// are of 512 tokens). Requests share blocks of equal hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hashes: Option<Vec<u64>>,
}

/// A malformed trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Line of the file, from 1; 0 if no line is at fault.
    pub line: usize,
    /// Description of the error, one line.
    pub why: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.why),
            line => write!(f, "line {line}: {}", self.why),
        }
    }
}

impl std::error::Error for TraceError {}

/// Latest arrival of a trace, seconds: a year. Beyond, the clock would lose nanoseconds.
const MAX_ARRIVAL_S: f64 = 3.2e7;

/// Largest prediction of a trace, tokens.
const MAX_PREDICTION: f32 = 1e9;

impl Trace {
    /// Parses the text of a trace file; blank lines are skipped. Sorted by arrival.
    ///
    /// Besides our own lines: CSV of Azure's LLM inference traces and of BurstGPT, and Mooncake's
    /// JSON lines (FAST '25), told apart by the first line. Their arrivals count from the first
    /// one; requests without output, which failed, are left out.
    pub fn parse(text: &str) -> Result<Vec<Trace>, TraceError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let error = |number, why: String| TraceError { line: number + 1, why: quote(&why) };
        let Some((number, first)) = lines.clone().next() else {
            return Err(TraceError { line: 0, why: "there is no request in it".into() });
        };
        let format = TraceFormat::of(first).map_err(|why| error(number, why))?;
        let (mut traces, mut ids) = (Vec::new(), HashSet::new());
        for (number, line) in lines.skip(usize::from(format.has_header())) {
            let wrong = |why| error(number, why);
            let trace = format.request(line, number as u64).map_err(wrong)?;
            let Some(trace) = trace else { continue };
            // Those of others are dates, or begin at any number.
            let is_ours = format == TraceFormat::Trail;
            let first = if is_ours { 0.0 } else { f64::MIN };
            let last = if is_ours { MAX_ARRIVAL_S } else { f64::MAX };
            trace.check_arrival(first, last).map_err(wrong)?;
            trace.check().map_err(wrong)?;
            if !ids.insert(trace.id) {
                return Err(wrong(format!("id {} occurs twice", trace.id)));
            }
            traces.push(trace);
        }
        if traces.is_empty() {
            return Err(TraceError { line: 0, why: "there is no request in it".into() });
        }
        traces.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        if format != TraceFormat::Trail {
            let first_s = traces[0].arrival_s;
            traces.iter_mut().for_each(|trace| trace.arrival_s -= first_s);
            let last = traces.last().expect("there is one");
            last.check_arrival(0.0, MAX_ARRIVAL_S).map_err(|why| TraceError { line: 0, why })?;
        }
        Ok(traces)
    }

    fn check_arrival(&self, first: f64, last: f64) -> Result<(), String> {
        match self.arrival_s {
            seconds if (first..=last).contains(&seconds) => Ok(()),
            seconds => {
                Err(format!("arrival_s is {seconds:?}: give seconds from 0 to {MAX_ARRIVAL_S}"))
            }
        }
    }

    /// Checks what a file's line must have: numbers in their bounds, and one prediction for each
    /// output token. Errors are one line.
    pub fn validate(&self) -> Result<(), String> {
        self.check_arrival(0.0, MAX_ARRIVAL_S)?;
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        let Trace { prompt_tokens, output_tokens, .. } = *self;
        if prompt_tokens == 0 || output_tokens == 0 {
            return Err("prompt_tokens and output_tokens must be at least 1".into());
        }
        if !Job::fits_a_context(prompt_tokens, output_tokens) {
            return Err(format!("{prompt_tokens} + {output_tokens} tokens fit no context"));
        }
        let remaining = self.remaining.iter().flat_map(|remaining| remaining.iter());
        let all = self.r.iter().chain(remaining);
        if let Some(wrong) = all.copied().find(|tokens| !(0.0..MAX_PREDICTION).contains(tokens)) {
            return Err(format!("a prediction is {wrong:?}: give tokens, 0 or more"));
        }
        let full = prompt_tokens / BLOCK_TOKENS;
        if let Some(hashes) =
            self.block_hashes.as_ref().filter(|hashes| hashes.len() > full as usize)
        {
            let given = hashes.len();
            return Err(format!("block_hashes has {given} hashes: the prompt fills {full} blocks"));
        }
        match &self.remaining {
            Some(remaining) if remaining.len() != output_tokens as usize => Err(format!(
                "remaining has {} entries: give one for each of the {output_tokens} output tokens",
                remaining.len()
            )),
            _ => Ok(()),
        }
    }

    /// The line of a trace file, without its line break.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and lists of numbers are JSON")
    }

    fn hashes(&self) -> Arc<[BlockHash]> {
        let hashes = self.block_hashes.iter().flatten();
        hashes.map(|&hash| BlockHash(hash.into())).collect()
    }

    fn refined(&self) -> Refined {
        self.remaining.as_deref().map_or(Refined::None, |trace| Refined::Recorded(trace.into()))
    }

    /// The request as a job under `max_tokens`, with its recorded predictions.
    pub fn job(&self, max_tokens: u32) -> Job {
        Job {
            id: self.id,
            arrival_ns: (self.arrival_s * 1e9).round() as u64,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            max_tokens: max_tokens.max(self.output_tokens),
            priority: 0,
            r: self.r,
            refined: self.refined(),
            block_hashes: self.hashes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"id":7,"arrival_s":0.5,"prompt_tokens":3,"output_tokens":2,"r":9.5,"remaining":[2,1.5]}"#;

    #[test]
    fn a_line_reads_back() {
        let plain = r#"{"id":8,"arrival_s":0.25,"prompt_tokens":3,"output_tokens":2}"#;
        let traces = Trace::parse(&format!("{GOOD}\n\n{plain}\n")).expect("sound");
        assert_eq!(traces.iter().map(|trace| trace.id).collect::<Vec<_>>(), [8, 7]);
        assert_eq!(traces[0].line(), plain);
        assert_eq!(Trace::parse(&traces[1].line()).expect("sound")[0], traces[1]);
        let job = traces[1].job(1);
        assert_eq!((job.arrival_ns, job.max_tokens, job.r), (500_000_000, 2, Some(9.5)));
        assert_eq!(job.refined, Refined::Recorded([2.0, 1.5].into()));
    }

    #[test]
    fn malformed_lines_are_named_in_one_line() {
        for (from, to, why) in [
            ("0.5", "-0.5", "arrival_s is -0.5"),
            ("0.5", "1e300", "arrival_s is 1e300"),
            ("0.5", "NaN", "expected value"),
            ("0.5", "1e999", "out of range"),
            ("9.5", "-1", "a prediction is -1.0"),
            ("9.5", "1e99", "number out of range"),
            ("[2,1.5]", "[2]", "remaining has 1 entries"),
            ("\"prompt_tokens\":3", "\"prompt_tokens\":0", "at least 1"),
            ("\"prompt_tokens\":3", "\"prompt_tokens\":4294967295", "fit no context"),
            ("\"r\"", "\"q\\nz\"", "unknown field"),
            ("}", "", "EOF"),
        ] {
            let text = format!("\n{}", GOOD.replace(from, to));
            let error = Trace::parse(&text).expect_err(to);
            assert_eq!(error.line, 2, "{error}");
            assert!(error.why.contains(why), "{to}: {error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
        assert!(Trace::parse(&format!("{GOOD}\n{GOOD}")).unwrap_err().why.contains("twice"));
        assert_eq!(Trace::parse(" \n").unwrap_err().line, 0);
    }
}
