//! A few requests through a backend, step by step: what the engine does, with nothing else to
//! decide.

use std::collections::HashMap;
use trail_runtime::backend::{
    BLOCK_TOKENS, Backend, Batch, Fault, PENDING, RequestKey, SampledToken, SamplingInput,
    SamplingInputs, SamplingParams, Step, TapPlan,
};
use trail_test_support::cuda::Chance;

/// Segments of a step, and rows.
pub(crate) const SEGMENTS: usize = 6;
pub(crate) const ROWS: usize = 40;
/// Requests in the engine: more than segments.
pub(crate) const REQUESTS: usize = 12;
pub(crate) const CONTEXT: usize = 128;
pub(crate) const BLOCKS: usize = 60;

/// A request, and when it runs.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    /// Tokens it answers with.
    pub(crate) answer: usize,
    pub(crate) sampling: SamplingParams,
    /// The first step that it may be in.
    pub(crate) from: u64,
    /// Prompt tokens in a step.
    pub(crate) chunk: usize,
    /// The host learns that the answer has ended only when the next step is in flight: a row more
    /// is computed, and dropped.
    pub(crate) surprises: bool,
    /// Steps that leave it out: every so many, when it has answered this many tokens; it keeps its
    /// blocks.
    pub(crate) pause_every: usize,
    /// The request index; of several with the same, one begins when the other has ended.
    pub(crate) request_index: u32,
}

impl Request {
    pub(crate) fn greedy(prompt: Vec<u32>, answer: usize, request_index: u32) -> Request {
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        Request {
            prompt,
            answer,
            sampling,
            from: 0,
            chunk: 17,
            surprises: false,
            pause_every: 0,
            request_index,
        }
    }
}

/// Which steps are made.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    /// Launch a step before the one before it is collected, as the engine does.
    pub(crate) ahead: bool,
    pub(crate) taps: bool,
    /// Steps list their segments in the order that this draws.
    pub(crate) seed: u64,
    /// Most rows of a step.
    pub(crate) rows: usize,
}

/// A running request.
struct Live {
    request: Request,
    /// Prompt and answer as far as it was collected.
    tokens: Vec<u32>,
    sampled: Vec<SampledToken>,
    /// Positions fed, and tokens sampled or being sampled.
    fed: usize,
    planned: usize,
    blocks: Vec<u32>,
    paused_at: usize,
    ended: bool,
}

impl Live {
    fn new(request: &Request) -> Live {
        Live {
            tokens: request.prompt.clone(),
            request: request.clone(),
            sampled: Vec::new(),
            fed: 0,
            planned: 0,
            blocks: Vec::new(),
            paused_at: 0,
            ended: false,
        }
    }

    /// The tokens of the next step, if it takes part in it.
    fn next(&mut self, step: u64) -> Option<(Vec<u32>, bool)> {
        let prompt = self.request.prompt.len();
        let max_sampled = self.request.answer + usize::from(self.request.surprises);
        if step < self.request.from || self.planned >= max_sampled {
            return None;
        }
        if self.fed < prompt {
            let end = (self.fed + self.request.chunk).min(prompt);
            return Some((self.tokens[self.fed..end].to_vec(), end == prompt));
        }
        let every = self.request.pause_every;
        if every > 0 && self.planned.is_multiple_of(every) && self.paused_at != self.planned {
            self.paused_at = self.planned;
            return None;
        }
        Some((vec![self.tokens.get(self.fed).copied().unwrap_or(PENDING)], true))
    }
}

struct Table<'a>(&'a [Live], &'a [Option<usize>]);

impl SamplingInputs for Table<'_> {
    fn of(&self, request_index: u32) -> SamplingInput<'_> {
        let live = &self.0[self.1[request_index as usize].expect("a live request")];
        let (prompt, generated) = live.tokens.split_at(live.request.prompt.len());
        SamplingInput { params: &live.request.sampling, prompt, generated, allowed: None }
    }
}

/// Results of a run.
#[derive(Default)]
pub(crate) struct Played {
    /// By request.
    pub(crate) answers: Vec<Vec<SampledToken>>,
    /// Which request an index and a generation of it were.
    pub(crate) requests_by_index: HashMap<(u32, u32), usize>,
    /// Steps that were launched, and their tapped rows.
    pub(crate) tapped: Vec<(u64, usize)>,
}

/// The answers of `requests`; `watch` is called after each launch, with the step's number and the
/// number of rows that it taps.
pub(crate) fn play(
    backend: &mut dyn Backend,
    requests: &[Request],
    schedule: Schedule,
    watch: &mut dyn FnMut(u64, usize),
) -> Result<Played, Fault> {
    let mut played = Played::default();
    let mut chance = Chance(schedule.seed);
    let mut free: Vec<u32> =
        chance.permutation(BLOCKS).into_iter().map(|block| block as u32).collect();
    let mut lives: Vec<Live> = requests.iter().map(Live::new).collect();
    // By request index: its request, and the number of requests that had it.
    let mut requests_by_index: Vec<Option<usize>> = vec![None; REQUESTS];
    let mut generations = [0u32; REQUESTS];
    let mut in_flight: Vec<Vec<usize>> = Vec::new();
    let mut batch = Batch::default();
    let mut tap = TapPlan::default();
    let mut number = 0;
    while lives.iter().any(|live| !live.ended) {
        number += 1;
        batch.clear();
        let mut choosing = Vec::new();
        for index in chance.permutation(lives.len()) {
            let request_index = lives[index].request.request_index as usize;
            if lives[index].ended
                || requests_by_index[request_index].is_some_and(|other| other != index)
            {
                continue;
            }
            if batch.segments.len() == SEGMENTS {
                break;
            }
            let live = &mut lives[index];
            let Some((tokens, samples)) = live.next(number) else { continue };
            if batch.rows() + tokens.len() > schedule.rows {
                continue;
            }
            if requests_by_index[request_index].is_none() {
                requests_by_index[request_index] = Some(index);
                generations[request_index] += 1;
                played
                    .requests_by_index
                    .insert((request_index as u32, generations[request_index]), index);
            }
            let end = live.fed + tokens.len();
            while live.blocks.len() * BLOCK_TOKENS < end {
                live.blocks.push(free.pop().expect("blocks enough"));
            }
            batch.push(request_index as u32, live.fed as u32, &tokens, &live.blocks, samples);
            live.fed = end;
            live.planned += usize::from(samples);
            if samples {
                choosing.push(index);
            }
        }
        if batch.segments.is_empty() {
            // All that could run is paused, or will come later.
            number -= 1;
            for live in &mut lives {
                live.request.from = live.request.from.saturating_sub(1);
            }
            if let Some(choosing) = in_flight.pop() {
                collect(backend, &choosing, &mut lives, &mut requests_by_index, &mut free)?;
            }
            continue;
        }
        let key = |request_index: u32| {
            let live = &lives[requests_by_index[request_index as usize].expect("a live request")];
            let prompt_len = live.request.prompt.len() as u32;
            RequestKey { generation: generations[request_index as usize], prompt_len }
        };
        tap.fill(&batch, key);
        let table = Table(&lives, &requests_by_index);
        let tapped = schedule.taps.then_some(&tap);
        backend.launch(&Step { number, batch: &batch, sampling: &table, tap: tapped })?;
        let rows = if schedule.taps { tap.rows.len() } else { 0 };
        played.tapped.push((number, rows));
        watch(number, rows);
        in_flight.insert(0, choosing);
        if in_flight.len() > usize::from(schedule.ahead) {
            let choosing = in_flight.pop().expect("a step");
            collect(backend, &choosing, &mut lives, &mut requests_by_index, &mut free)?;
        }
    }
    while let Some(choosing) = in_flight.pop() {
        collect(backend, &choosing, &mut lives, &mut requests_by_index, &mut free)?;
    }
    played.answers = lives.into_iter().map(|live| live.sampled).collect();
    Ok(played)
}

/// Takes a step's tokens in, and lets those go that have answered.
fn collect(
    backend: &mut dyn Backend,
    choosing: &[usize],
    lives: &mut [Live],
    requests_by_index: &mut [Option<usize>],
    free: &mut Vec<u32>,
) -> Result<(), Fault> {
    let mut sampled = Vec::new();
    backend.collect(&mut sampled)?;
    assert_eq!(sampled.len(), choosing.len(), "a token for each segment that wants one");
    for (&index, sampled) in choosing.iter().zip(sampled) {
        let sampled = sampled.expect("finite logits");
        let live = &mut lives[index];
        if live.ended {
            continue;
        }
        live.tokens.push(sampled.id);
        live.sampled.push(sampled);
        if live.sampled.len() == live.request.answer {
            live.ended = true;
            free.append(&mut live.blocks);
            requests_by_index[live.request.request_index as usize] = None;
        }
    }
    Ok(())
}
