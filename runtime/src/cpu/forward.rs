//! The forward pass: construction, and validation of batches.

use std::sync::Arc;

use trail_platform::Memory;

use crate::backend::{BLOCK_TOKENS, Batch};
use crate::model::{Model, Tensor, Weights};

use super::buffers::{Buffers, WorkerScratch};
use super::check::{check_config, check_weights};
use super::narrow::{NarrowKernels, matrices};
use super::options::CpuOptions;
use super::repack::repack;
use super::rope::RopeTables;
use super::states::StatePool;
use super::{Compute, Isa, KvPool, Pool};
use trail_cpu_kernels::Kernels;

/// The forward pass of a model on the CPU: weights, KV pool, threads and buffers.
pub struct CpuForward {
    pub(super) model: Arc<Model>,
    /// The model's weights, repacked where the options say so.
    pub(super) weights: Weights,
    pub(super) options: CpuOptions,
    pub(super) kernels: &'static Kernels,
    pub(super) pool: Pool,
    pub(super) kv: KvPool,
    pub(super) states: StatePool,
    pub(super) rope: RopeTables,
    pub(super) buffers: Buffers,
    /// Scratch memory of each worker `[workers]`.
    pub(super) scratch: Vec<WorkerScratch>,
}

impl CpuForward {
    /// Validates the model, starts the threads and allocates all memory that `forward` uses.
    pub fn new(model: Arc<Model>, options: CpuOptions) -> Result<Self, String> {
        let start = if options.pin { Pool::pinned } else { Pool::new };
        let mut pool = start(options.threads.max(1))?;
        let mut forward = CpuForward::on(&mut pool, model, options)?;
        forward.exchange_threads(&mut pool);
        Ok(forward)
    }

    /// The same on the threads of `pool`, as many as `options` says, which stay the caller's:
    /// [`CpuForward::exchange_threads`] before and after each pass.
    pub fn on(pool: &mut Pool, model: Arc<Model>, options: CpuOptions) -> Result<Self, String> {
        CpuForward::with_pool(model, options, pool, 0)
    }

    /// The same on the threads of `other`, which keeps them.
    pub fn beside(
        other: &mut CpuForward,
        model: Arc<Model>,
        options: CpuOptions,
    ) -> Result<Self, String> {
        let others = other.options.bytes(&other.model.config);
        CpuForward::with_pool(model, options, &mut other.pool, others)
    }

    /// The same beside `others` bytes.
    fn with_pool(
        model: Arc<Model>,
        options: CpuOptions,
        pool: &mut Pool,
        others: u128,
    ) -> Result<Self, String> {
        let config = &model.config;
        check_config(config)?;
        check_weights(&model)?;
        options.check_memory(config, others, Memory::read())?;
        let kernels = Kernels::select(options.isa)?;
        if options.repack && options.compute == Compute::Exact {
            return Err(
                "--repack is for products in 8 bits: leave it out, or choose --compute fast".into(),
            );
        }
        let narrow = NarrowKernels::select(&model, options.compute, options.isa)?;
        let threads = options.threads.max(1);
        let weights = match options.repack {
            true => repack(&model, &narrow, pool, others + options.bytes(config))?,
            false => model.weights.clone(),
        };
        // The constructor is not always the thread that computes.
        pool.release_caller();
        Ok(CpuForward {
            kernels,
            pool: Pool::new(1)?,
            weights,
            kv: KvPool::new(config, options.num_blocks, options.kv_dtype)?,
            states: StatePool::new(config, &options)?,
            rope: RopeTables::new(config, options.max_context),
            buffers: Buffers::new(config, &options, narrow)?,
            scratch: (0..threads).map(|_| WorkerScratch::new(config)).collect::<Result<_, _>>()?,
            options,
            model,
        })
    }

    /// The instruction set in use; never `Auto`.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// The instruction of products in 8 bits, `avx512_vnni` for instance; `None` if there are none.
    pub fn byte_products(&self) -> Option<&'static str> {
        self.buffers.narrow.kernels.q8.map(|kernels| kernels.name)
    }

    /// The instruction of products in bf16, `avx512_bf16` for instance; `None` if there are none.
    pub fn bf16_products(&self) -> Option<&'static str> {
        self.buffers.narrow.kernels.pairs.map(|kernels| kernels.name)
    }

    /// The weights in the layouts that products read: those that were repacked are interleaved.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The matrices that the last pass read: of a mixture's experts those that computed a row.
    pub fn matrices_read(&self) -> Vec<&Tensor> {
        let mut read = Vec::new();
        for (index, layer) in self.weights.layers.iter().enumerate() {
            read.extend([&layer.q, &layer.k, &layer.v, &layer.o]);
            read.extend(layer.delta_net.iter().flat_map(|net| [&net.gate, &net.rates]));
            read.extend(layer.mlp.mixture().map(|mixture| &mixture.router));
            for (mlp, gated) in layer.mlp.gated().enumerate() {
                if self.buffers.routes.is_used(&self.model.config, index, mlp) {
                    read.extend(gated.matrices());
                }
            }
        }
        read.push(&self.weights.lm_head);
        read
    }

    /// Bytes of weights that were repacked.
    pub fn repacked_bytes(&self) -> usize {
        let repacked = matrices(&self.weights).filter(|tensor| tensor.is_interleaved());
        repacked.map(|tensor| tensor.bytes().len()).sum()
    }

    /// The thread pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The thread pool, for the cost of its regions.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Exchanges the threads with those of `pool`; one of both has only the caller's.
    pub fn exchange_threads(&mut self, pool: &mut Pool) {
        std::mem::swap(&mut self.pool, pool);
    }

    /// The KV pool.
    pub fn kv(&self) -> &KvPool {
        &self.kv
    }

    /// The KV pool, writable: for blocks that are swapped in.
    pub fn kv_mut(&mut self) -> &mut KvPool {
        &mut self.kv
    }

    /// Number of recurrent states; 0 for a model without gated delta nets.
    pub fn num_states(&self) -> usize {
        self.states.count()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The configuration given to [`CpuForward::new`].
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }

    /// Panics if `batch` violates an assumption of the parallel regions.
    pub(super) fn check(&mut self, batch: &Batch) {
        self.states.check(batch);
        let options = &self.options;
        assert!(batch.rows() <= options.max_rows, "batch of {} rows", batch.rows());
        assert!(batch.segments.len() <= options.max_segments, "too many segments");
        let vocab = self.model.config.vocab_size;
        assert!(batch.tokens.iter().all(|&t| (t as usize) < vocab), "token outside the vocabulary");
        assert!(
            batch.block_tables.iter().all(|&b| (b as usize) < options.num_blocks),
            "no such block"
        );
        let config = &self.model.config;
        assert!(batch.adapters.iter().all(|adapter| adapter.fits(config)), "another base model's");
        let has_adapter = |index: u32| (index as usize) < batch.adapters.len();
        let mut indices = batch.segments.iter().filter_map(|segment| segment.adapter);
        assert!(indices.all(has_adapter), "no such adapter");
        let mut next_row = 0;
        for segment in &batch.segments {
            assert!(segment.first_row == next_row && segment.len > 0, "segments out of row order");
            next_row += segment.len;
            let end = (segment.start + segment.len) as usize;
            assert!(end <= options.max_context, "context of {end} tokens");
            assert!(segment.num_blocks as usize * BLOCK_TOKENS >= end, "block table too short");
        }
        assert_eq!(next_row as usize, batch.rows(), "rows outside the segments");
        let sampled: usize =
            batch.segments.iter().map(|segment| segment.sampled_rows().len()).sum();
        assert!(sampled <= options.max_sampled(), "{sampled} rows to sample");
    }
}
