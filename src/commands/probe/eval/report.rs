//! Figures of `trail-rt probe eval`.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use trail_cli::Table;
use trail_probe::{HeadDtype, Probe, TapLayers};
use trail_training::evaluation::{
    AGES, Mae, Reliability, Trace, best_constant, bin_accuracy, countdown,
    expected_calibration_error, heat_map, maes, reliability, short_behind_long, tau_b,
};

use crate::commands::probe::layers::layer_json;

/// Requests that a class of age and predicted bin needs for its calibration to be judged.
const ENOUGH_REQUESTS: usize = 200;

/// Classes of true length, tokens: the largest of each.
const LENGTHS: [u32; 5] = [32, 128, 256, 511, u32::MAX];

/// Ranking by one predictor.
struct Ranking {
    name: &'static str,
    tau_b: f64,
    short_behind_long: f64,
}

/// All figures.
pub struct EvaluationReport {
    model: String,
    layer: TapLayers,
    answers: usize,
    stopped: usize,
    mae: Mae,
    by_age: Vec<(&'static str, Mae)>,
    by_length: Vec<(String, Mae)>,
    /// Of answers that ended by themselves, and that were cut.
    by_end: [Mae; 2],
    constant: f32,
    bin_accuracy: f64,
    /// Share of the steps at which a head of each type gives the bin that f32 gives.
    same_bin: [f64; HeadDtype::ALL.len()],
    ece: f64,
    rankings: Vec<Ranking>,
    /// By age and predicted bin.
    pub reliability: Vec<Reliability>,
    /// Steps by true and predicted bin.
    pub heat_map: Vec<Vec<u64>>,
}

impl EvaluationReport {
    /// The figures of `traces`.
    pub fn new(model: &str, probe: &Probe, traces: &[Trace]) -> EvaluationReport {
        let bins = &probe.bins;
        let constant = best_constant(traces);
        let mae = |keep: &dyn Fn(&Trace, usize) -> bool| maes(traces, constant, keep);
        let refined = |trace: &Trace, step: usize| trace.refined[step];
        let all = mae(&|_, _| true);
        let same = |dtype| traces.iter().map(|trace| trace.same_bin[dtype]).sum::<usize>();
        EvaluationReport {
            model: model.into(),
            layer: probe.layers,
            answers: traces.len(),
            stopped: traces.iter().filter(|trace| trace.stopped).count(),
            mae: all,
            by_age: AGES.map(|age| (age.name, mae(&|_, step| age.has(step)))).into(),
            by_length: lengths(traces, constant),
            by_end: [true, false].map(|stopped| mae(&|trace, _| trace.stopped == stopped)),
            constant,
            bin_accuracy: bin_accuracy(traces, bins),
            same_bin: std::array::from_fn(|dtype| same(dtype) as f64 / all.steps.max(1) as f64),
            ece: expected_calibration_error(traces, bins),
            rankings: rankings(traces),
            reliability: reliability(traces, bins),
            heat_map: heat_map(traces, bins, refined),
        }
    }

    /// The title of the plot.
    pub fn title(&self) -> String {
        format!(
            "{}, layer {}: {} held-out answers, MAE {:.1} tokens",
            self.model, self.layer, self.answers, self.mae.refined
        )
    }

    /// The object printed with `--json`.
    pub fn json(&self) -> Value {
        let named = |all: &mut dyn Iterator<Item = (String, &Mae)>| -> Value {
            let all: Map<String, Value> = all.map(|(name, mae)| (name, mae_json(mae))).collect();
            all.into()
        };
        let rankings: Map<String, Value> = self
            .rankings
            .iter()
            .map(|of| {
                let figures =
                    json!({ "tau_b": of.tau_b, "short_behind_long": of.short_behind_long });
                (of.name.to_owned(), figures)
            })
            .collect();
        json!({
            "model": self.model,
            "layer": layer_json(self.layer),
            "answers": self.answers,
            "stopped_by_themselves": self.stopped,
            "rows": self.mae.steps,
            "mae": five(&self.mae),
            "best_constant": self.constant,
            "mae_by_age": named(&mut self.by_age.iter().map(|(name, mae)| ((*name).into(), mae))),
            "mae_by_length": named(&mut self.by_length.iter().map(|(name, mae)| (name.clone(), mae))),
            "mae_stopped": mae_json(&self.by_end[0]),
            "mae_cut": mae_json(&self.by_end[1]),
            "bin_accuracy": self.bin_accuracy,
            "same_bin_as_f32": self.same_bins().collect::<Map<_, _>>(),
            "ece": self.ece,
            "tau_b": self.rankings[0].tau_b,
            "ranking": rankings,
            "reliability": self.reliability.iter().map(reliability_json).collect::<Vec<_>>(),
            "heat_map": self.heat_map,
        })
    }

    /// The text printed without it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}, probe of layer {}: {} answers ({} ended by themselves), {} steps\n\nMean absolute \
             error of the remaining tokens (prompt-only predictions counted down)\n\n",
            self.model, self.layer, self.answers, self.stopped, self.mae.steps
        );
        let constant = format!("constant {}", self.constant);
        let columns = ["steps", "refined", "raw", "prompt probe", "length predictor", &constant];
        let mut table = Table::default().group("", &["of"]).group("MAE, tokens", &columns);
        let mut row = |name: &str, mae: &Mae| {
            let figure =
                |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
            let figures = [
                Some(mae.refined),
                Some(mae.raw),
                Some(mae.prompt_probe),
                mae.length_predictor,
                Some(mae.constant),
            ];
            let cells = [name.to_owned(), mae.steps.to_string()];
            table.row(cells.into_iter().chain(figures.map(figure)));
        };
        row("all steps", &self.mae);
        self.by_age.iter().for_each(|(name, mae)| row(&format!("age {name}"), mae));
        self.by_length.iter().for_each(|(name, mae)| row(&format!("length {name}"), mae));
        row("ended by themselves", &self.by_end[0]);
        row("cut", &self.by_end[1]);
        let mut ranks =
            Table::default().group("", &["order by"]).group("", &["tau-b", "short behind long"]);
        for Ranking { name, tau_b, short_behind_long } in &self.rankings {
            ranks.row([(*name).into(), format!("{tau_b:.3}"), format!("{short_behind_long:.3}")]);
        }
        let (judged, wrong) = self.miscalibrated();
        let _ = write!(
            text,
            "{table}\nbin accuracy {:.3}, expected calibration error {:.3}; of {judged} classes of \
             age and predicted bin with {ENOUGH_REQUESTS} requests, {wrong} are off by more than 10 \
             tokens and 2.5 standard errors\nsame bin as with weights in f32: bf16 {:.4}, int8 \
             {:.4}\n\n{ranks}",
            self.bin_accuracy, self.ece, self.same_bin[1], self.same_bin[2]
        );
        text
    }

    /// [`Self::same_bin`] of the types below f32, by name.
    fn same_bins(&self) -> impl Iterator<Item = (String, Value)> {
        let all = HeadDtype::ALL.into_iter().zip(self.same_bin);
        all.skip(1).map(|(dtype, share)| (dtype.name().to_owned(), share.into()))
    }

    /// Classes of age and predicted bin with enough requests, and those that are off by more than
    /// 10 tokens and 2.5 standard errors.
    fn miscalibrated(&self) -> (usize, usize) {
        let judged = self.reliability.iter().filter(|of| of.requests >= ENOUGH_REQUESTS);
        let is_off = |of: &&Reliability| {
            (of.predicted - of.remained).abs() > 10.0_f64.max(2.5 * of.standard_error)
        };
        (judged.clone().count(), judged.filter(is_off).count())
    }
}

/// Errors by true length.
fn lengths(traces: &[Trace], constant: f32) -> Vec<(String, Mae)> {
    let mut first = 1;
    let mut all = Vec::new();
    for last in LENGTHS {
        let name = match last {
            u32::MAX => format!("{first} and more"),
            _ => format!("{first}-{last}"),
        };
        let is_in = |trace: &Trace, _| (first..=last).contains(&trace.tokens());
        all.push((name, maes(traces, constant, is_in)));
        first = last.saturating_add(1);
    }
    all
}

fn rankings(traces: &[Trace]) -> Vec<Ranking> {
    type Predicted<'a> = &'a dyn Fn(&Trace, usize) -> f32;
    let of = |name, predicted: Predicted<'_>| Ranking {
        name,
        tau_b: tau_b(traces, predicted),
        short_behind_long: short_behind_long(traces, predicted),
    };
    let mut all = vec![
        of("refined", &|trace, step| trace.refined[step]),
        of("raw", &|trace, step| trace.raw[step]),
        of("prompt_probe", &|trace, step| countdown(trace.prompt_probe, step)),
    ];
    if traces.iter().all(|trace| trace.length_predictor.is_some()) {
        let bag = |trace: &Trace, step: usize| {
            countdown(trace.length_predictor.unwrap_or_default(), step)
        };
        all.push(of("bag_of_tokens", &bag));
    }
    all
}

/// The five errors. `bag_of_tokens` is of the predictor in use, which is one unless
/// `--length-predictor` names another kind.
fn five(mae: &Mae) -> Value {
    json!({
        "raw": mae.raw,
        "refined": mae.refined,
        "constant": mae.constant,
        "prompt_probe": mae.prompt_probe,
        "bag_of_tokens": mae.length_predictor,
    })
}

fn mae_json(mae: &Mae) -> Value {
    let mut object = five(mae);
    object["steps"] = json!(mae.steps);
    object
}

fn reliability_json(of: &Reliability) -> Value {
    json!({
        "age": of.age.name,
        "bin": of.bin,
        "requests": of.requests,
        "said": of.predicted,
        "remained": of.remained,
        "standard_error": of.standard_error,
    })
}
