//! The CPU backend as a device would be: it answers late, and moves KV to the host and back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::batch::{Batch, PENDING};
use crate::cpu::CpuBackend;
use crate::engine::backend::{Backend, Fault, Step, Transfers};
use crate::engine::forecast::Forecast;
use crate::engine::host::Host;
use crate::engine::sampling::Sampled;

/// Looks at a transfer before it is done.
const LOOKS: usize = 3;
/// Blocks of the host's pool.
pub(super) const HOST_BLOCKS: u32 = 10;

/// How it breaks, and at which step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Breaks {
    Fails(u64),
    Panics(u64),
}

/// Answers a step after the next one was launched, and knows tokens before its caller.
pub(super) struct Ahead {
    inner: Host,
    /// By slot: what it sampled last.
    last: Vec<u32>,
    answers: VecDeque<Vec<Sampled>>,
    breaks: Option<Breaks>,
    /// Blocks at the host, by slot.
    host: HashMap<u32, Vec<Vec<f32>>>,
    /// Slot, blocks, whether they leave, and how often it was looked at.
    moving: Vec<(u32, Vec<u32>, bool, usize)>,
}

impl Ahead {
    pub(super) fn new(
        backend: CpuBackend,
        forecast: Option<Arc<Forecast>>,
        breaks: Option<Breaks>,
    ) -> Ahead {
        let inner = Host::new(backend, forecast);
        let (last, answers) = (vec![PENDING; 64], VecDeque::new());
        Ahead { inner, last, answers, breaks, host: HashMap::new(), moving: Vec::new() }
    }

    /// Copies as late as can be, so that a block that was given away too early is seen.
    fn carry_out(&mut self, slot: u32, blocks: &[u32], out: bool) {
        let kv = self.inner.backend_mut().kv_mut();
        if out {
            self.host.insert(slot, blocks.iter().map(|&block| kv.block(block).to_vec()).collect());
            return;
        }
        let copies = self.host.remove(&slot).expect("it was swapped out");
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

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        assert!(self.answers.len() <= 1, "two steps under way at most");
        match self.breaks {
            Some(Breaks::Fails(at)) if at == step.number => {
                return Err(Fault("the planned breakdown".into()));
            }
            Some(Breaks::Panics(at)) if at == step.number => panic!("the planned panic"),
            _ => {}
        }
        let mut batch: Batch = step.batch.clone();
        for segment in &batch.segments {
            let token = &mut batch.tokens[segment.first_row as usize];
            if *token == PENDING {
                assert_eq!(segment.len, 1);
                *token = self.last[segment.slot as usize];
            }
        }
        self.inner.launch(&Step { batch: &batch, ..*step })?;
        let mut sampled = Vec::new();
        self.inner.collect(&mut sampled)?;
        let wanted = batch.segments.iter().filter(|segment| segment.logits);
        wanted.zip(&sampled).for_each(|(of, chosen)| self.last[of.slot as usize] = chosen.id);
        self.answers.push_back(sampled);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.extend(self.answers.pop_front().expect("a step is under way"));
        Ok(())
    }

    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        Some(self)
    }
}

impl Transfers for Ahead {
    fn swap_out(&mut self, slot: u32, blocks: &[u32]) -> Result<(), Fault> {
        self.moving.push((slot, blocks.to_vec(), true, 0));
        Ok(())
    }

    fn swap_in(&mut self, slot: u32, blocks: &[u32]) -> Result<(), Fault> {
        self.moving.push((slot, blocks.to_vec(), false, 0));
        Ok(())
    }

    fn finished(&mut self, slots: &mut Vec<u32>) -> Result<(), Fault> {
        self.moving.iter_mut().for_each(|(.., looks)| *looks += 1);
        // The latest begun ends first: nobody promises an order.
        while let Some(at) = self.moving.iter().rposition(|&(.., looks)| looks >= LOOKS) {
            let (slot, blocks, out, _) = self.moving.remove(at);
            self.carry_out(slot, &blocks, out);
            slots.push(slot);
        }
        let held: usize = self.host.values().map(Vec::len).sum();
        assert!(held <= HOST_BLOCKS as usize, "{held} blocks at the host");
        Ok(())
    }

    fn forget(&mut self, slot: u32) {
        assert!(self.moving.iter().all(|(of, ..)| *of != slot), "its transfer is under way");
        self.host.remove(&slot).expect("it was swapped out");
    }

    fn host_blocks(&self) -> u32 {
        HOST_BLOCKS
    }

    fn block_s(&self) -> f64 {
        1e-4
    }

    fn token_s(&self) -> f64 {
        1e-4
    }
}
