//! The CPU backend behaving as a device: it returns tokens one step late, and copies KV to a host
//! pool and back.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::backend::{
    Backend, Batch, Fault, HiddenSink, PENDING, RowSink, Sampled, SamplingInput, SamplingInputs,
    Step, TapPlan, Transfers,
};
use crate::cpu::{CpuBackend, CpuForward};
use crate::engine::{LengthProbe, ProbeParts};

/// Polls of a transfer before it completes.
const LOOKS: usize = 3;
/// Size of the host pool, blocks.
pub(super) const HOST_BLOCKS: u32 = 10;

/// A planned misbehaviour, and its step.
#[derive(Clone, Debug)]
pub(super) enum Breaks {
    Fails(u64),
    /// The first step after the flag is set.
    FailsWhen(Arc<AtomicBool>),
    Panics(u64),
    /// The thread that hands the step's activations over panics before it does.
    LosesTap(u64),
    /// Predictions of a step are published during the next one.
    DelaysTap,
    /// Steps of odd numbers have no predictions.
    SkipsTaps,
}

/// A step, its plan and batch, and the residual stream.
type Published = (u64, TapPlan, Batch, Vec<f32>);

/// Hands the activations of a step to the probe during the next step.
struct DelayedTap {
    probe: Arc<LengthProbe>,
    held: Mutex<Option<Published>>,
}

impl HiddenSink for DelayedTap {
    fn publish_hidden(&self, step: u64, at: usize, plan: &TapPlan, batch: &Batch, hidden: &[f32]) {
        assert_eq!(at, 0, "the tests' probes read one layer");
        let mut held = self.held.lock().unwrap();
        let now = (step, plan.clone(), batch.clone(), hidden.to_vec());
        if let Some((step, plan, batch, hidden)) = held.replace(now) {
            self.probe.publish_hidden(step, 0, &plan, &batch, &hidden);
            while HiddenSink::assist(&*self.probe) {}
        }
    }

    fn assist(&self) -> bool {
        false
    }
}

/// Sampling inputs with the tokens that the host does not know yet.
struct Known<'a> {
    sampling: &'a dyn SamplingInputs,
    /// By request.
    generated: HashMap<u32, Vec<u32>>,
}

impl SamplingInputs for Known<'_> {
    fn of(&self, request: u32) -> SamplingInput<'_> {
        let input = self.sampling.of(request);
        let generated = self.generated.get(&request).map_or(input.generated, |all| all);
        SamplingInput { generated, ..input }
    }
}

/// Returns the tokens of a step after the next one was launched, and substitutes pending tokens.
pub(super) struct Ahead {
    inner: CpuBackend,
    /// By request: its last sampled token.
    last: Vec<u32>,
    answers: VecDeque<Vec<Sampled>>,
    /// True if the step in flight has draft tokens.
    has_drafts: bool,
    breaks: Option<Breaks>,
    probe: Option<Arc<LengthProbe>>,
    /// Host copies of blocks, by request.
    host: HashMap<u32, Vec<Vec<u8>>>,
    /// Transfers in flight: request, blocks, whether to the host, and polls so far.
    moving: Vec<(u32, Vec<u32>, bool, usize)>,
}

impl Ahead {
    pub(super) fn new(
        forward: CpuForward,
        probe: Option<ProbeParts>,
        breaks: Option<Breaks>,
    ) -> Ahead {
        let probe = probe.map(|parts| parts.probe);
        let tap = probe.clone().map(|probe| {
            let receiver: Arc<dyn HiddenSink> = match breaks {
                Some(Breaks::DelaysTap) => {
                    Arc::new(DelayedTap { probe: probe.clone(), held: Mutex::default() })
                }
                _ => probe.clone(),
            };
            (probe.layers(), receiver)
        });
        let inner = CpuBackend::new(forward, tap);
        let (last, answers) = (vec![PENDING; 64], VecDeque::new());
        let (host, moving) = (HashMap::new(), Vec::new());
        Ahead { inner, last, answers, has_drafts: false, breaks, probe, host, moving }
    }

    /// Does what is planned for step `number`. Returns false if its rows are not to be tapped.
    fn misbehave(&self, number: u64) -> Result<bool, Fault> {
        let planned = Err(Fault("the planned breakdown".into()));
        match &self.breaks {
            Some(Breaks::Fails(at)) if *at == number => planned,
            Some(Breaks::FailsWhen(flag)) if flag.load(Ordering::Relaxed) => planned,
            Some(Breaks::Panics(at)) if *at == number => panic!("the planned panic"),
            Some(Breaks::LosesTap(at)) if *at <= number => {
                // As `FailOnPanic` of the CUDA backend's threads.
                let probe = self.probe.clone().expect("a probe");
                std::thread::spawn(move || probe.fail());
                Ok(false)
            }
            Some(Breaks::SkipsTaps) => Ok(number.is_multiple_of(2)),
            _ => Ok(true),
        }
    }

    /// Copies as late as possible, so that a block that was reused too early is noticed.
    fn carry_out(&mut self, request: u32, blocks: &[u32], out: bool) {
        let kv = self.inner.forward_mut().kv_mut();
        if out {
            let copies = blocks.iter().map(|&block| kv.block(block).to_vec()).collect();
            let forgotten = self.host.insert(request, copies).is_none();
            assert!(forgotten, "the host copy of the index's last request was not released");
            return;
        }
        let copies = self.host.remove(&request).expect("it was swapped out");
        assert_eq!(copies.len(), blocks.len());
        for (&block, copy) in blocks.iter().zip(&copies) {
            kv.block_mut(block).copy_from_slice(copy);
        }
    }
}

impl Backend for Ahead {
    fn ahead(&self) -> usize {
        1
    }

    fn takes_drafts(&self) -> bool {
        true
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        assert!(self.answers.len() <= 1, "two steps in flight at most");
        assert!(!self.has_drafts, "a step with draft tokens is collected before the next");
        self.has_drafts = step.batch.segments.iter().any(|segment| segment.drafts > 0);
        let taps = self.misbehave(step.number)?;
        let mut batch: Batch = step.batch.clone();
        let mut sampling = Known { sampling: step.sampling, generated: HashMap::new() };
        for segment in &batch.segments {
            let token = &mut batch.tokens[segment.first_row as usize];
            if *token == PENDING {
                assert_eq!(segment.len, 1);
                *token = self.last[segment.request as usize];
                let generated = step.sampling.of(segment.request).generated;
                sampling.generated.insert(segment.request, [generated, &[*token]].concat());
            }
        }
        let tap = step.tap.filter(|_| taps);
        self.inner.launch(&Step { batch: &batch, sampling: &sampling, tap, ..*step })?;
        let mut sampled = Vec::new();
        self.inner.collect(&mut sampled)?;
        let mut results = sampled.iter();
        for segment in batch.segments.iter().filter(|segment| segment.logits) {
            let of_segment = results.by_ref().take(segment.sampled_rows().len());
            let token = of_segment.last().expect("a result for each row");
            // As on a device: the step in flight needs some token, which no caller sees.
            self.last[segment.request as usize] = token.map_or(0, |token| token.id);
        }
        self.answers.push_back(sampled);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.has_drafts = false;
        sampled.extend(self.answers.pop_front().expect("a step is in flight"));
        Ok(())
    }

    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        Some(self)
    }
}

impl Transfers for Ahead {
    fn swap_out(&mut self, request: u32, blocks: &[u32]) -> Result<(), Fault> {
        self.moving.push((request, blocks.to_vec(), true, 0));
        Ok(())
    }

    fn swap_in(&mut self, request: u32, blocks: &[u32]) -> Result<(), Fault> {
        self.moving.push((request, blocks.to_vec(), false, 0));
        Ok(())
    }

    fn finished(&mut self, requests: &mut Vec<u32>) -> Result<(), Fault> {
        self.moving.iter_mut().for_each(|(.., looks)| *looks += 1);
        // The latest one completes first: no order is promised.
        while let Some(at) = self.moving.iter().rposition(|&(.., looks)| looks >= LOOKS) {
            let (request, blocks, out, _) = self.moving.remove(at);
            self.carry_out(request, &blocks, out);
            requests.push(request);
        }
        let held: usize = self.host.values().map(Vec::len).sum();
        assert!(held <= HOST_BLOCKS as usize, "{held} host blocks");
        Ok(())
    }

    fn forget(&mut self, request: u32) {
        assert!(self.moving.iter().all(|(of, ..)| *of != request), "its transfer is in flight");
        self.host.remove(&request).expect("it was swapped out");
    }

    fn host_blocks(&self) -> u32 {
        HOST_BLOCKS
    }

    fn block_bytes(&self) -> u64 {
        1 << 16
    }

    fn block_s(&self) -> f64 {
        1e-4
    }

    fn token_s(&self) -> f64 {
        1e-4
    }
}
