//! Reading of the trace that `bench overlap --timeline` writes.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

/// A span of a trace; times in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// Name of the span.
    pub(crate) name: String,
    /// Index of the engine step.
    pub(crate) step: u64,
    /// Start, microseconds.
    pub(crate) begin: f64,
    /// End, microseconds.
    pub(crate) end: f64,
}

/// A trace, read back.
pub(crate) struct Written {
    /// Index of the step that is shown.
    pub(crate) step: u64,
    /// Maximum difference between the two clocks, microseconds.
    pub(crate) clock_error_us: f64,
    lanes: Vec<(String, Vec<Span>)>,
}

/// Path prefix of the test's files.
pub(crate) fn prefix(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

impl Written {
    /// Reads PREFIX.json.
    pub(crate) fn read(prefix: &str) -> Written {
        let trace = fs::read_to_string(format!("{prefix}.json")).expect("was written");
        let trace: Value = serde_json::from_str(&trace).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let number = |value: &Value| value.as_f64().expect("a number");
        let mut lanes = Vec::new();
        for lane in events.iter().filter(|event| event["name"] == "thread_name") {
            let name = lane["args"]["name"].as_str().expect("a name");
            let here = |event: &&Value| event["ph"] == "X" && event["tid"] == lane["tid"];
            let spans = events.iter().filter(here).map(|event| Span {
                name: event["name"].as_str().expect("a name").to_owned(),
                step: event["args"]["step"].as_u64().expect("a step"),
                begin: number(&event["ts"]),
                end: number(&event["ts"]) + number(&event["dur"]),
            });
            lanes.push((name.to_owned(), spans.collect()));
        }
        let about = &trace["otherData"];
        Written {
            step: about["step"].as_u64().expect("a step"),
            clock_error_us: about["clock_error_us"].as_f64().unwrap_or(0.0),
            lanes,
        }
    }

    /// Names of the lanes, top to bottom.
    pub(crate) fn lanes(&self) -> Vec<&str> {
        self.lanes.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The only span `name` of the step that is `later` steps after the one shown.
    pub(crate) fn only(&self, name: &str, later: u64) -> Span {
        let spans = self.all(name, later);
        assert_eq!(spans.len(), 1, "{name}: {spans:?}");
        spans[0].clone()
    }

    /// All spans `name` of the step that is `later` steps after the one shown.
    pub(crate) fn all(&self, name: &str, later: u64) -> Vec<Span> {
        let spans = self.lanes.iter().flat_map(|(_, spans)| spans);
        let step = self.step + later;
        spans.filter(|span| span.name == name && span.step == step).cloned().collect()
    }

    /// Checks the order that holds on every device: the spans of a stream or thread do not overlap,
    /// and the parts of the model follow each other.
    pub(crate) fn check_order(&self) {
        for (name, spans) in &self.lanes {
            assert!(spans.iter().all(|span| span.begin <= span.end), "{name}: {spans:?}");
            let mut ordered: Vec<&Span> =
                spans.iter().filter(|span| span.name != "its share of the step").collect();
            ordered.sort_by(|a, b| a.begin.total_cmp(&b.begin));
            for pair in ordered.windows(2) {
                // Tolerance of a thousandth of a microsecond for rounding.
                assert!(pair[1].begin >= pair[0].end - 1e-3, "{name}: {pair:?}");
            }
        }
        let [lower, upper, sampling] =
            ["lower layers", "upper layers, logits", "sampling"].map(|name| self.only(name, 0));
        assert!(lower.end <= upper.begin + 1e-3 && upper.end <= sampling.begin + 1e-3);
        let copy = self.only("tap copy", 0);
        assert!(copy.begin >= lower.end - 1e-3, "{copy:?} behind {lower:?}");
        let [plan, launch] = ["plan", "fill, launch"].map(|name| self.only(name, 1));
        assert!(plan.end <= launch.begin + 1e-3);
        assert!(self.only("lower layers", 1).begin >= sampling.end - 1e-3);
    }
}
