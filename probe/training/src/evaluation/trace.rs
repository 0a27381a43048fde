//! Predictions for one answer.

use trail_probe::{Head, HeadDtype, HeadKind, LengthPredictor, Prediction, Probe, Prompt, Tracker};

use crate::inference::of_answer;
use crate::shard::{Row, Shard};

/// The predictors that are compared.
pub struct Predictors<'a> {
    /// The probe.
    pub probe: &'a Probe,
    /// The prompt-only predictor over the prompt's tokens, if any.
    pub predictor: Option<&'a dyn LengthPredictor>,
    /// The probe's head in each of [`HeadDtype::ALL`].
    heads: [Head; HeadDtype::ALL.len()],
}

impl<'a> Predictors<'a> {
    /// The predictors beside the probe's head in every type.
    pub fn new(probe: &'a Probe, predictor: Option<&'a dyn LengthPredictor>) -> Predictors<'a> {
        let heads = HeadDtype::ALL.map(|dtype| Head::with_dtype(&probe.weights, dtype));
        Predictors { probe, predictor, heads }
    }
}

/// Predictions for one answer. Elements of the vectors are steps: tokens fed so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Line of the prompt in its file.
    pub index: u32,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// True if the answer ended with an end mark, false if it was cut.
    pub stopped: bool,
    /// Distribution over the probe's bins `[steps][bins]`.
    pub probabilities: Vec<Vec<f32>>,
    /// Its expectation, tokens `[steps]`.
    pub raw: Vec<f32>,
    /// The filter's expectation, tokens `[steps]`: what the scheduler sees.
    pub refined: Vec<f32>,
    /// Total tokens that the probe predicts from the mean over the prompt, to be counted down.
    pub prompt_probe: f32,
    /// Total tokens that the prompt-only predictor predicts, to be counted down.
    pub length_predictor: Option<f32>,
    /// Steps at which a head in each of [`HeadDtype::ALL`] gives the bin that f32 gives.
    pub same_bin: [usize; HeadDtype::ALL.len()],
}

impl Trace {
    /// The traces of all answers of `shard`, which must have all rows of each.
    pub fn of_shard(shard: &Shard, predictors: &Predictors<'_>) -> Result<Vec<Trace>, String> {
        let (width, probe) = (shard.hidden(), predictors.probe);
        if width * probe.layers.count() != probe.head.d() {
            return Err(format!(
                "{} has activations of width {width}, the probe reads {} from layer {}: it is of \
                 another model",
                shard.name(),
                probe.head.d(),
                probe.layers
            ));
        }
        let mut first = 0;
        let answers = shard.answers().iter().enumerate();
        answers
            .map(|(request, answer)| {
                let steps = answer.tokens.len();
                let rows = first..(first + steps - 1).min(shard.rows().len());
                first = rows.end;
                let expected =
                    (1..steps as u32).map(|generated| Row { request: request as u32, generated });
                if !shard.rows()[rows.clone()].iter().copied().eq(expected) {
                    return Err(format!(
                        "{} lacks rows of answer {}: collect with --rows 0",
                        shard.name(),
                        answer.index
                    ));
                }
                Ok(Trace::new(shard, request, rows, predictors))
            })
            .collect()
    }

    /// Output tokens.
    pub fn tokens(&self) -> u32 {
        self.raw.len() as u32
    }

    /// The steps, with the output tokens that remain at each.
    pub fn steps(&self) -> impl Iterator<Item = (usize, u32)> {
        let tokens = self.tokens();
        (0..tokens).map(move |step| (step as usize, tokens - step))
    }

    fn new(
        shard: &Shard,
        request: usize,
        rows: std::ops::Range<usize>,
        predictors: &Predictors<'_>,
    ) -> Trace {
        let Predictors { probe, predictor, heads } = predictors;
        let answer = &shard.answers()[request];
        let width = probe.head.d();
        let mut inputs = vec![0.0; (1 + rows.len()) * width];
        let (mean, singles) = inputs.split_at_mut(width);
        read_mean(shard, request, probe, mean);
        for (row, out) in rows.zip(singles.chunks_exact_mut(width)) {
            for (layer, out) in probe.layers.iter().zip(out.chunks_exact_mut(shard.hidden())) {
                shard.activation(layer, row, out);
            }
        }
        let (prompt_tokens, generated) =
            (answer.prompt.len() as u32, (0..answer.tokens.len() as u32));
        let generated: Vec<u32> = generated.collect();
        let of = |head| of_answer(head, prompt_tokens, &generated, &inputs);
        let bins = heads.each_ref().map(|head| {
            let all = of(head);
            all.iter().map(|p| likeliest(p)).collect::<Vec<_>>()
        });
        let same_bin =
            bins.each_ref().map(|of| of.iter().zip(&bins[0]).filter(|(a, b)| a == b).count());
        let mut probabilities = of(&probe.head);
        let left = |generated| match probe.weights.kind {
            HeadKind::Bins => f32::INFINITY,
            HeadKind::Survival => probe.bins.left(generated),
        };
        let raw = (0..).zip(&probabilities);
        let raw = raw.map(|(generated, p)| probe.bins.expected_until(p, left(generated)));
        let raw: Vec<f32> = raw.collect();
        let mut tracker = Tracker::new(probe.filter(), 1);
        let refined = (0..).zip(&probabilities).map(|(generated, p)| {
            let estimate = tracker.observe(0, 0, generated, p);
            estimate.expect("the only generation").remaining
        });
        let refined = refined.collect();
        for (generated, p) in (0..).zip(&mut probabilities) {
            probe.bins.cut(p, left(generated).min(probe.bins.max_tokens() as f32));
        }
        Trace {
            index: answer.index,
            prompt_tokens,
            stopped: answer.stopped,
            refined,
            prompt_probe: raw[0],
            length_predictor: predictor
                .and_then(|predictor| predictor.predict(&Prompt::new(&answer.prompt)))
                .map(|prediction| prediction.mean()),
            raw,
            probabilities,
            same_bin,
        }
    }
}

/// The prediction of `probe` from the mean over the prompt of request `request` of `shard`.
pub fn of_prompt(shard: &Shard, request: usize, probe: &Probe) -> Prediction {
    let mut mean = vec![0.0; probe.head.d()];
    read_mean(shard, request, probe, &mut mean);
    let prompt_tokens = shard.answers()[request].prompt.len() as u32;
    let q = of_answer(&probe.head, prompt_tokens, &[0], &mean).swap_remove(0);
    Prediction::Bins { bins: Box::new(probe.bins), q }
}

/// Writes the means over a prompt's activations, of the probe's layers side by side, to `out`.
fn read_mean(shard: &Shard, request: usize, probe: &Probe, out: &mut [f32]) {
    for (layer, out) in probe.layers.iter().zip(out.chunks_exact_mut(shard.hidden())) {
        shard.mean(layer, request, out);
    }
}

/// The first of the most probable bins.
fn likeliest(p: &[f32]) -> usize {
    (0..p.len()).fold(0, |best, bin| if p[bin] > p[best] { bin } else { best })
}
