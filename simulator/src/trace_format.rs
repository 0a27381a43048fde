//! Trace files of others: Azure's and BurstGPT's CSV, Mooncake's JSON lines.

use jiff::civil::DateTime;
use serde::Deserialize;
use trail_scheduler::BLOCK_TOKENS;

use crate::trace::Trace;

/// The format of a trace file, by its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceFormat {
    /// Our own: one [`Trace`] a line.
    Trail,
    /// Mooncake (FAST '25): `timestamp` in ms, `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// Columns by a header: those of Azure's LLM traces or of BurstGPT's.
    Columns(Columns),
}

/// Places of the columns of a CSV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    arrival: usize,
    prompt: usize,
    output: usize,
}

impl TraceFormat {
    /// The format of a file with this first line.
    pub(crate) fn of(line: &str) -> Result<TraceFormat, String> {
        if line.trim_start().starts_with('{') {
            let is_mooncake = serde_json::from_str::<Mooncake>(line).is_ok();
            return Ok(if is_mooncake { TraceFormat::Mooncake } else { TraceFormat::Trail });
        }
        let names: Vec<String> =
            line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        let place = |of: &[&str]| names.iter().position(|name| of.contains(&&**name));
        let columns = Option::zip(
            place(&["timestamp"]),
            place(&["contexttokens", "request tokens"])
                .zip(place(&["generatedtokens", "response tokens"])),
        );
        match columns {
            Some((arrival, (prompt, output))) => {
                Ok(TraceFormat::Columns(Columns { arrival, prompt, output }))
            }
            None => Err("neither a JSON object nor a header with the columns TIMESTAMP, \
                         ContextTokens, GeneratedTokens (Azure) or Timestamp, Request tokens, \
                         Response tokens (BurstGPT)"
                .into()),
        }
    }

    /// True if the first line is no request.
    pub(crate) fn has_header(self) -> bool {
        matches!(self, TraceFormat::Columns(_))
    }

    /// The request of a line; `None` for one that has no output, as it failed. Arrivals of others
    /// count from any time.
    pub(crate) fn request(self, line: &str, id: u64) -> Result<Option<Trace>, String> {
        match self {
            TraceFormat::Trail => {
                serde_json::from_str(line).map(Some).map_err(|error| error.to_string())
            }
            TraceFormat::Mooncake => {
                let row: Mooncake =
                    serde_json::from_str(line).map_err(|error| error.to_string())?;
                Ok((row.output_length > 0).then(|| row.trace(id)))
            }
            TraceFormat::Columns(columns) => columns.request(line, id),
        }
    }
}

/// A line of Mooncake's traces. Other fields are of no use here.
#[derive(Deserialize)]
struct Mooncake {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    /// Numbers of the prompt's blocks of 512 tokens.
    hash_ids: Vec<u64>,
}

/// KV blocks of one of Mooncake's blocks.
const MOONCAKE_BLOCKS: u64 = 512 / BLOCK_TOKENS as u64;

impl Mooncake {
    fn trace(self, id: u64) -> Trace {
        let ours = |hash_id: u64| {
            (0..MOONCAKE_BLOCKS)
                .map(move |at| hash_id.wrapping_mul(MOONCAKE_BLOCKS).wrapping_add(at))
        };
        let full = self.input_length / BLOCK_TOKENS;
        let block_hashes = self.hash_ids.into_iter().flat_map(ours).take(full as usize).collect();
        Trace {
            id,
            arrival_s: self.timestamp / 1e3,
            prompt_tokens: self.input_length,
            output_tokens: self.output_length,
            r: None,
            remaining: None,
            block_hashes: Some(block_hashes),
        }
    }
}

impl Columns {
    fn request(self, line: &str, id: u64) -> Result<Option<Trace>, String> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let cell = |at: usize| {
            cells.get(at).copied().ok_or_else(|| format!("column {} is missing", at + 1))
        };
        let tokens = |at: usize| {
            let text = cell(at)?;
            text.parse::<u32>().map_err(|_| format!("'{text}' is not a number of tokens"))
        };
        let (arrival_s, prompt_tokens) = (seconds(cell(self.arrival)?)?, tokens(self.prompt)?);
        let output_tokens = tokens(self.output)?;
        let trace = Trace {
            id,
            arrival_s,
            prompt_tokens,
            output_tokens,
            r: None,
            remaining: None,
            block_hashes: None,
        };
        Ok((output_tokens > 0).then_some(trace))
    }
}

/// Seconds of a timestamp: a number, or a date and a time.
fn seconds(text: &str) -> Result<f64, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Ok(seconds);
    }
    let time: DateTime =
        text.parse().map_err(|_| format!("'{text}' is neither seconds nor a date and a time"))?;
    let since = time.duration_since(DateTime::constant(2000, 1, 1, 0, 0, 0, 0));
    Ok(since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Trace> {
        Trace::parse(text).unwrap()
    }

    fn sizes(traces: &[Trace]) -> Vec<(f64, u32, u32)> {
        let size = |trace: &Trace| (trace.arrival_s, trace.prompt_tokens, trace.output_tokens);
        traces.iter().map(size).collect()
    }

    #[test]
    fn azures_rows_arrive_after_the_first_one() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    2023-11-16 18:15:46.6805900,374,44\r\n\
                    2023-11-16 18:15:46.1805900,396,109\r\n\
                    2023-11-17 00:00:00.1805900,5,0\r\n\
                    2023-11-17 00:00:00.1805900,879,55\r\n";
        let rows = sizes(&parse(text));
        assert_eq!(rows.len(), 3, "one has no output");
        let near = |at: usize, seconds: f64| (rows[at].0 - seconds).abs() < 1e-6;
        assert!(near(0, 0.0) && near(1, 0.5) && near(2, 20_654.0 - 0.0), "{rows:?}");
        assert_eq!((rows[0].1, rows[0].2, rows[1].1, rows[2].2), (396, 109, 374, 55));
    }

    #[test]
    fn burstgpts_columns_are_found_by_name() {
        let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                    45,ChatGPT,472,18,490,Conversation log\n\
                    5,GPT-4,1087,230,1317,API log\n";
        assert_eq!(sizes(&parse(text)), [(0.0, 1087, 230), (40.0, 472, 18)]);
        let more = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n\
                    7,1,0.5,GPT-4,10,20\n";
        assert_eq!(sizes(&parse(more)), [(0.0, 10, 20)]);
    }

    #[test]
    fn mooncakes_blocks_are_of_512_tokens() {
        let text = r#"{"timestamp": 27000, "input_length": 530, "output_length": 3, "hash_ids": [7, 9]}
                      {"timestamp": 30000, "input_length": 40, "output_length": 5, "hash_ids": [7]}"#;
        let traces = parse(text);
        assert_eq!(sizes(&traces), [(0.0, 530, 3), (3.0, 40, 5)]);
        let hashes = |at: usize| traces[at].block_hashes.as_ref().unwrap();
        assert_eq!(hashes(0).len(), 33);
        assert_eq!((hashes(0)[..2].to_vec(), hashes(0)[32]), (hashes(1).clone(), 9 * 32));
    }

    #[test]
    fn wrong_rows_are_named_in_one_line() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        for (text, line, why) in [
            ("a,b\n1,2\n", 1, "neither a JSON object nor a header"),
            (&format!("{azure}2023-11-16 18:15:46,374\n"), 2, "column 3 is missing"),
            (&format!("{azure}2023-11-16 18:15:46,x,1\n"), 2, "'x' is not a number of tokens"),
            (&format!("{azure}yesterday,3,1\n"), 2, "'yesterday' is neither seconds nor a date"),
            (&format!("{azure}0,3,1\n\nNaN,3,1\n"), 4, "arrival_s is NaN"),
            (&format!("{azure}0,0,1\n"), 2, "at least 1"),
            (azure, 0, "no request"),
        ] {
            let error = Trace::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.why.contains(why), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
