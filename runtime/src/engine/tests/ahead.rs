//! The CPU backend behaving as a device: it returns tokens one step late, and copies KV to a host
//! pool and back.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use trail_scheduler::Copies;

use crate::backend::{
    Backend, Batch, Fault, HiddenSink, PENDING, RowSink, Sampled, SamplingInput, SamplingInputs,
    Scored, Step, TapPlan, Transfers,
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
    /// Masks of constraints are refused.
    TakesNoMasks,
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
    answers: VecDeque<(Vec<Sampled>, Vec<Scored>)>,
    /// Of the step that was collected last.
    scored: Vec<Scored>,
    /// True if the step in flight has draft tokens.
    has_drafts: bool,
    breaks: Option<Breaks>,
    probe: Option<Arc<LengthProbe>>,
    /// `[host block]`
    host: Vec<Vec<u8>>,
    moving: Vec<Moving>,
}

/// A transfer in flight.
struct Moving {
    request: u32,
    /// Blocks of the device, and of the host.
    blocks: Vec<(u32, u32)>,
    out: bool,
    polls: usize,
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
        Ahead {
            inner,
            last,
            answers,
            scored: Vec::new(),
            has_drafts: false,
            breaks,
            probe,
            host: vec![Vec::new(); HOST_BLOCKS as usize],
            moving: Vec::new(),
        }
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
    fn carry_out(&mut self, blocks: &[(u32, u32)], out: bool) {
        let kv = self.inner.forward_mut().kv_mut();
        for &(device, host) in blocks {
            let copy = &mut self.host[host as usize];
            if out {
                *copy = kv.block(device).to_vec();
            } else {
                kv.block_mut(device).copy_from_slice(copy);
            }
        }
    }

    fn begin(&mut self, request: u32, Copies { device, host }: Copies<'_>, out: bool) {
        assert_eq!(device.len(), host.len());
        let blocks: Vec<_> = device.iter().copied().zip(host.iter().copied()).collect();
        // No two transfers write one block.
        let places = |moving: &Moving, block: (u32, u32)| {
            let written = |of: (u32, u32), out| if out { of.1 } else { of.0 };
            let other = moving.blocks.iter().filter(|_| moving.out == out);
            other.map(|&of| written(of, out)).any(|place| place == written(block, out))
        };
        let clash = |&block: &(u32, u32)| self.moving.iter().any(|of| places(of, block));
        assert!(!blocks.iter().any(clash), "two transfers write one block");
        self.moving.push(Moving { request, blocks, out, polls: 0 });
    }
}

impl Backend for Ahead {
    fn ahead(&self) -> usize {
        1
    }

    fn takes_drafts(&self) -> bool {
        true
    }

    fn takes_masks(&self) -> bool {
        !matches!(self.breaks, Some(Breaks::TakesNoMasks))
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
        let scored = self.inner.scores().expect("the CPU scores").to_vec();
        self.answers.push_back((sampled, scored));
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.has_drafts = false;
        let (tokens, scored) = self.answers.pop_front().expect("a step is in flight");
        sampled.extend(tokens);
        self.scored = scored;
        Ok(())
    }

    fn scores(&self) -> Option<&[Scored]> {
        Some(&self.scored)
    }

    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        Some(self)
    }
}

impl Transfers for Ahead {
    fn swap_out(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault> {
        self.begin(request, copies, true);
        Ok(())
    }

    fn swap_in(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault> {
        self.begin(request, copies, false);
        Ok(())
    }

    fn finished(&mut self, requests: &mut Vec<u32>) -> Result<(), Fault> {
        self.moving.iter_mut().for_each(|moving| moving.polls += 1);
        // The latest one completes first: no order is promised.
        while let Some(at) = self.moving.iter().rposition(|moving| moving.polls >= LOOKS) {
            let Moving { request, blocks, out, .. } = self.moving.remove(at);
            self.carry_out(&blocks, out);
            requests.push(request);
        }
        Ok(())
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
