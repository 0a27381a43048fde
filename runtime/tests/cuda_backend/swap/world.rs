//! A pool, steps that write it, requests that come and go, and what each block should hold.

use cudarc::driver::{CudaStream, result};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trail_platform::rng::splitmix64;
use trail_runtime::backend::Transfers;
use trail_runtime::cuda::kv::block_bytes;
use trail_runtime::cuda::{DEVICE_TIMEOUT, Device, KvPool, Priority, Swap, SwapOptions};
use trail_runtime::model::ModelConfig;
use trail_scheduler::Copies;

const REQUESTS: usize = 6;
/// Longest wait for transfers: what comes later hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a request's KV is. Blocks have versions, which say what they hold.
#[derive(Clone, Debug)]
enum RequestState {
    Free,
    Resident { blocks: Vec<u32> },
    Leaving { blocks: Vec<u32>, host: Vec<u32>, versions: Vec<u64> },
    Away { host: Vec<u32>, versions: Vec<u64> },
    Returning { blocks: Vec<u32>, host: Vec<u32> },
}

// Fields are dropped in this order: the swap before the pool.
pub(crate) struct World {
    pub(crate) swap: Swap,
    pool: KvPool,
    compute: Arc<CudaStream>,
    _device: Arc<Device>,
    requests: Vec<RequestState>,
    free: Vec<u32>,
    free_host: Vec<u32>,
    /// Contents of each block when all queued work has run.
    versions: Vec<u64>,
    last_version: u64,
    state: u64,
    /// Steps, out, in, forgotten, ended.
    pub(crate) counts: [usize; 5],
}

/// Contents of a block of some version.
pub(crate) fn content(version: u64) -> Vec<u8> {
    let mut state = version;
    (0..block_bytes(&config()) / 8).flat_map(|_| splitmix64(&mut state).to_le_bytes()).collect()
}

fn config() -> ModelConfig {
    ModelConfig::named("tiny").unwrap()
}

impl World {
    pub(crate) fn new(blocks: usize, host_blocks: u32, checksums: bool, seed: u64) -> World {
        World::within(DEVICE_TIMEOUT, (blocks, host_blocks), checksums, seed)
    }

    /// The same on a device that hangs if it is not done within `timeout`.
    pub(crate) fn within(
        timeout: Duration,
        (blocks, host_blocks): (usize, u32),
        checksums: bool,
        seed: u64,
    ) -> World {
        let device = Arc::new(Device::open_within(0, timeout).unwrap());
        let compute = device.stream(Priority::High).unwrap();
        let pool = KvPool::new(&device, &config(), Some(blocks), 0).unwrap();
        let options = SwapOptions { host_blocks, max_requests: REQUESTS, checksums };
        let swap = Swap::new(&device, &compute, &pool, options).unwrap();
        World {
            swap,
            pool,
            compute,
            _device: device,
            requests: vec![RequestState::Free; REQUESTS],
            free: (0..blocks as u32).collect(),
            free_host: (0..host_blocks).collect(),
            versions: vec![0; blocks],
            last_version: 0,
            state: seed,
            counts: [0; 5],
        }
    }

    fn below(&mut self, end: usize) -> usize {
        (splitmix64(&mut self.state) % end as u64) as usize
    }

    pub(crate) fn version_of(&self, block: u32) -> u64 {
        self.versions[block as usize]
    }

    /// Launches a step that overwrites `blocks`.
    pub(crate) fn write(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.last_version += 1;
            let bytes = content(self.last_version);
            let at = self.pool.block_at(block);
            // SAFETY: the block is as long; pageable memory is taken before the call returns.
            unsafe {
                result::memcpy_htod_async(at.address(), &bytes, self.compute.cu_stream()).unwrap()
            };
            self.versions[block as usize] = self.last_version;
        }
    }

    /// One of the things that happen in an engine.
    pub(crate) fn act(&mut self) {
        let request = self.below(REQUESTS);
        match (self.requests[request].clone(), self.below(8)) {
            (RequestState::Free, 0..4) => self.come(request),
            (RequestState::Resident { blocks }, 0..3) => self.step(&blocks),
            (RequestState::Resident { blocks }, 3..6) => self.leave(request, blocks),
            (RequestState::Resident { blocks }, 6) => self.end(request, blocks),
            (RequestState::Away { versions, .. }, 0..6) => self.come_back(request, versions.len()),
            (RequestState::Away { host, .. }, 6) => {
                self.free_host.extend(host);
                self.requests[request] = RequestState::Free;
                self.counts[3] += 1;
            }
            _ => self.poll(),
        }
    }

    fn take_free(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.free.len() < count {
            return None;
        }
        let mut taken = Vec::new();
        // Often in ascending order, as a fresh pool hands them out.
        if self.below(2) == 0 {
            self.free.sort_unstable_by(|a, b| b.cmp(a));
        }
        for _ in 0..count {
            taken.extend(self.free.pop());
        }
        Some(taken)
    }

    fn come(&mut self, request: usize) {
        let count = 1 + self.below(6);
        let Some(blocks) = self.take_free(count) else { return };
        self.write(&blocks);
        self.requests[request] = RequestState::Resident { blocks };
    }

    fn step(&mut self, blocks: &[u32]) {
        let block = blocks[self.below(blocks.len())];
        self.write(&[block]);
        self.counts[0] += 1;
    }

    fn leave(&mut self, request: usize, blocks: Vec<u32>) {
        let Some(kept) = self.free_host.len().checked_sub(blocks.len()) else { return };
        let host = self.free_host.split_off(kept);
        self.step(&blocks);
        let copies = Copies { device: &blocks, host: &host };
        self.swap.swap_out(request as u32, copies).unwrap();
        let versions = blocks.iter().map(|&block| self.version_of(block)).collect();
        self.requests[request] = RequestState::Leaving { blocks, host, versions };
        self.counts[1] += 1;
    }

    /// The request ends; a step that is launched already writes its blocks once more, as one behind
    /// its end of sequence does.
    fn end(&mut self, request: usize, blocks: Vec<u32>) {
        self.write(&blocks);
        self.free.extend(blocks);
        self.requests[request] = RequestState::Free;
        self.counts[4] += 1;
    }

    fn come_back(&mut self, request: usize, count: usize) {
        let Some(blocks) = self.take_free(count) else { return };
        let RequestState::Away { host, versions } = self.requests[request].clone() else { return };
        let copies = Copies { device: &blocks, host: &host };
        self.swap.swap_in(request as u32, copies).unwrap();
        for (&block, version) in blocks.iter().zip(versions) {
            self.versions[block as usize] = version;
        }
        self.requests[request] = RequestState::Returning { blocks, host };
        self.counts[2] += 1;
    }

    fn poll(&mut self) {
        let mut ended = Vec::new();
        self.swap.finished(&mut ended).unwrap();
        for request in ended {
            let request = &mut self.requests[request as usize];
            *request = match std::mem::replace(request, RequestState::Free) {
                RequestState::Leaving { blocks, host, versions } => {
                    self.free.extend(blocks);
                    RequestState::Away { host, versions }
                }
                RequestState::Returning { blocks, host } => {
                    self.free_host.extend(host);
                    RequestState::Resident { blocks }
                }
                other => panic!("a transfer ended of {other:?}"),
            };
        }
    }

    /// Brings everybody back, and looks at what all blocks in use hold.
    pub(crate) fn settle(&mut self) {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < LIMIT, "a transfer does not end: {:?}", self.requests);
            self.poll();
            let away = |request: &RequestState| matches!(request, RequestState::Away { .. });
            let moving = |request: &RequestState| {
                matches!(request, RequestState::Leaving { .. } | RequestState::Returning { .. })
            };
            match self.requests.iter().position(away) {
                Some(request) => {
                    let RequestState::Away { versions, .. } = self.requests[request].clone() else {
                        unreachable!()
                    };
                    if self.free.len() < versions.len() {
                        self.make_room();
                    }
                    self.come_back(request, versions.len());
                }
                None if self.requests.iter().any(moving) => {}
                None => break,
            }
        }
        self.check();
    }

    /// Looks at a resident's blocks and ends it.
    fn make_room(&mut self) {
        let resident = |request: &RequestState| matches!(request, RequestState::Resident { .. });
        let Some(request) = self.requests.iter().position(resident) else { return };
        self.check();
        let RequestState::Resident { blocks } = self.requests[request].clone() else {
            unreachable!()
        };
        self.end(request, blocks);
    }

    fn check(&self) {
        self.compute.synchronize().unwrap();
        for (index, request) in self.requests.iter().enumerate() {
            let RequestState::Resident { blocks } = request else { continue };
            for &block in blocks {
                let mut found = vec![0u8; self.pool.block_bytes()];
                let at = self.pool.block_at(block);
                // SAFETY: as long as a block; all that writes it has run.
                unsafe { result::memcpy_dtoh_sync(&mut found, at.address()).unwrap() };
                assert!(
                    found == content(self.version_of(block)),
                    "block {block} of request {index}"
                );
            }
        }
    }

    /// Polls until `request` is named.
    pub(crate) fn wait(&mut self, request: u32) {
        let (mut ended, begin) = (Vec::new(), Instant::now());
        while !ended.contains(&request) {
            assert!(begin.elapsed() < LIMIT, "the transfer of {request} does not end");
            self.swap.finished(&mut ended).unwrap();
        }
    }

    /// Polls until a fault.
    pub(crate) fn wait_for_fault(&mut self) -> String {
        let (mut ended, begin) = (Vec::new(), Instant::now());
        loop {
            assert!(begin.elapsed() < LIMIT, "no fault is reported");
            match self.swap.finished(&mut ended) {
                Ok(()) => assert!(ended.is_empty(), "named as finished: {ended:?}"),
                Err(fault) => return fault.to_string(),
            }
        }
    }
}

impl Drop for World {
    /// Lets the steps end before the pool goes.
    fn drop(&mut self) {
        let _ = self.compute.synchronize();
    }
}
