//! When queued work runs, and running it.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::config::{Order, Target};
use super::queue::{HostBytes, Id, Launch, Work};
use super::state::{QUEUED, State, lock};
use crate::exec::grid::Grid;
use crate::exec::order::Words;
use crate::report::{Finding, Kind};

type Guard = MutexGuard<'static, State>;

/// How long a wait for a value in memory may take.
const STUCK: Duration = Duration::from_secs(60);

/// Work was queued: the background thread must know.
pub(crate) fn notice() {
    start_background();
    QUEUED.notify_all();
}

/// Lets queued work run as the order says: none, all that may, or some.
pub(crate) fn some(mut state: Guard) -> Guard {
    loop {
        let go = match state.config.order {
            Order::Late => false,
            Order::Early => true,
            Order::Seeded => state.next_random().is_multiple_of(3),
        };
        if !go {
            return state;
        }
        let (next, ran) = one(state);
        state = next;
        if !ran {
            return state;
        }
    }
}

/// Runs one operation that may run; says whether there was one.
pub(crate) fn one(mut state: Guard) -> (Guard, bool) {
    let ready = state.queue.ready();
    match pick(&mut state, &ready) {
        Some(id) => (execute(state, id), true),
        None => {
            let waited = !state.posted.is_empty();
            let random = state.next_random();
            state.posted.land_one(random);
            (state, waited)
        }
    }
}

/// A random one of those that may run and do not wait for memory.
fn pick(state: &mut State, ready: &[Id]) -> Option<Id> {
    let ready: Vec<Id> = ready.iter().copied().filter(|&id| !blocked(state, id)).collect();
    let at = state.next_random();
    (!ready.is_empty()).then(|| ready[(at % ready.len() as u64) as usize])
}

fn blocked(state: &State, id: Id) -> bool {
    if state.hung == Some(id) {
        return true;
    }
    match state.queue.work(id) {
        Some(&Work::Wait { at, value, flags, wide }) => !met(state, at, value, flags, wide),
        _ => false,
    }
}

fn met(state: &State, at: u64, value: u64, flags: u32, wide: bool) -> bool {
    let Ok(allocation) = state.memory.check(at, if wide { 8 } else { 4 }) else { return true };
    let host = allocation.host(at);
    // SAFETY: `check` found the word in live memory; callers check its alignment. The host writes
    // it at any time, hence atomics.
    let now = unsafe {
        if wide {
            AtomicU64::from_ptr(host.cast()).load(Ordering::Acquire)
        } else {
            u64::from(AtomicU32::from_ptr(host.cast()).load(Ordering::Acquire))
        }
    };
    let difference = now.wrapping_sub(value);
    match flags & 3 {
        0 => {
            if wide {
                difference as i64 >= 0
            } else {
                difference as u32 as i32 >= 0
            }
        }
        1 => now == value,
        2 => now & value != 0,
        _ => !(now | value) & if wide { u64::MAX } else { u64::from(u32::MAX) } != 0,
    }
}

/// Runs what `goal` needs, and it; in the late order nothing else.
pub(crate) fn until(mut state: Guard, goal: Id) -> Guard {
    let begin = Instant::now();
    while !state.queue.is_done(goal) {
        let ready = state.queue.ready_for(goal);
        if let Some(id) = pick(&mut state, &ready) {
            state = execute(state, id);
            continue;
        }
        // The goal waits for a value: perhaps another stream writes it, perhaps the host.
        let (next, ran) = one(state);
        state = next;
        if !ran {
            state = pause(state, begin);
        }
    }
    state.posted.land_all();
    state
}

fn pause(mut state: Guard, begin: Instant) -> Guard {
    if begin.elapsed() > STUCK {
        let detail = match state.hung {
            Some(_) => "the host waits for a kernel that never ends",
            None => "a stream waits for a value in memory that no stream writes",
        };
        let detail = detail.to_owned();
        fail(&mut state, Finding::host(Kind::Hang, detail));
        return state;
    }
    drop(state);
    std::thread::sleep(Duration::from_micros(50));
    lock()
}

/// Waits without bound where a kernel never ends: calls that wait for the device block.
pub(crate) fn wait_if_hung(state: Guard) -> Guard {
    if state.hung.is_some() { all(state) } else { state }
}

/// Runs everything.
pub(crate) fn all(mut state: Guard) -> Guard {
    let begin = Instant::now();
    while !state.queue.is_empty() {
        let (next, ran) = one(state);
        state = next;
        if !ran {
            state = pause(state, begin);
        }
    }
    state.posted.land_all();
    state
}

/// Breaks the context.
fn fail(state: &mut State, finding: Finding) {
    state.sticky.get_or_insert(finding.code());
    state.report(finding);
    state.abandon();
}

fn execute(mut state: Guard, id: Id) -> Guard {
    let hang = match state.queue.work(id) {
        Some(Work::Launch(_)) => Some(Target::Hang),
        Some(Work::ToHost { .. } | Work::ToDevice { .. }) => Some(Target::HangCopy),
        _ => None,
    };
    if hang.is_some_and(|target| state.config.count(target).is_err()) {
        state.hung = Some(id);
        return state;
    }
    let random = state.next_random();
    if random & 1 == 0 {
        state.posted.land_one(random >> 1);
    }
    if matches!(state.queue.work(id), Some(Work::Launch(launch)) if launch.cooperative) {
        state = run_beside(state, id);
    }
    let Some(work) = state.queue.start(id) else { return state };
    if let Work::Call { function, argument } = work {
        state.posted.land_all();
        drop(state);
        // SAFETY: the caller of `cuLaunchHostFunc` gave this function, to be called with this
        // argument, from any thread.
        let function: unsafe extern "C" fn(usize) = unsafe { std::mem::transmute(function) };
        // SAFETY: as above.
        unsafe { function(argument) };
        state = lock();
    } else if let Err(finding) = perform(&mut state, work) {
        fail(&mut state, finding);
    }
    state.queue.finish(id);
    state
}

/// Runs some of what may run beside the cooperative launch `id`, whose blocks fill the chip:
/// copies, events and memory writes of other streams, and no kernel. By chance some, or none:
/// without them the launch must be right too.
fn run_beside(mut state: Guard, id: Id) -> Guard {
    loop {
        if state.next_random() & 3 == 0 {
            return state;
        }
        let mut ready = state.queue.ready();
        let needs_room = |work: &Work| matches!(work, Work::Launch(_) | Work::Call { .. });
        ready.retain(|&other| other != id && !state.queue.work(other).is_none_or(needs_room));
        let Some(other) = pick(&mut state, &ready) else { return state };
        let is_write = matches!(state.queue.work(other), Some(Work::Store { .. }));
        state.writes_beside += u64::from(is_write);
        state = execute(state, other);
    }
}

fn at(
    state: &State,
    address: u64,
    bytes: usize,
    what: &str,
) -> Result<std::sync::Arc<crate::memory::Allocation>, Finding> {
    state.memory.check(address, bytes as u64).map_err(|why| {
        let freed =
            state.memory.find(address).is_some_and(|a| a.state() != crate::memory::State::Live);
        Finding::host(
            if freed { Kind::UseAfterFree } else { Kind::OutOfBounds },
            format!("{what}: {why}"),
        )
    })
}

fn perform(state: &mut State, work: Work) -> Result<(), Finding> {
    if !matches!(work, Work::Launch(_)) {
        // Only launches overlap: what is behind another operation begins when all before it ended.
        state.unfinished = state.launches + 1;
    }
    match work {
        Work::Launch(launch) => return run(state, launch),
        Work::ToDevice { from, to, bytes } => {
            // It may read what a copy to the host wrote.
            state.posted.land_all();
            let allocation = at(state, to, bytes, "copy to the device")?;
            match from {
                HostBytes::Taken(taken) => allocation.write(to, &taken),
                // SAFETY: the caller of the copy promised `bytes` bytes there until the copy has
                // run.
                HostBytes::At(host) => allocation
                    .write(to, unsafe { std::slice::from_raw_parts(host as *const u8, bytes) }),
            }
        }
        Work::ToHost { from, to, bytes } => {
            let allocation = at(state, from, bytes, "copy to the host")?;
            let mut taken = vec![0; bytes];
            allocation.read(from, &mut taken);
            state.posted.post(to, taken);
        }
        Work::Within { from, to, bytes } => {
            state.posted.land_all();
            let (source, target) = (
                at(state, from, bytes, "copy on the device, source")?,
                at(state, to, bytes, "copy on the device, target")?,
            );
            // SAFETY: both ranges were found; `copy` allows them to overlap.
            unsafe { std::ptr::copy(source.host(from), target.host(to), bytes) };
            target.written.copy(
                to - target.base,
                &source.written,
                from - source.base,
                bytes as u64,
            );
        }
        Work::Fill { to, pattern, count } => {
            state.posted.land_all();
            let allocation = at(state, to, count * pattern.len(), "memset")?;
            let bytes = if pattern.iter().all(|&byte| byte == pattern[0]) {
                vec![pattern[0]; count * pattern.len()]
            } else {
                pattern.repeat(count)
            };
            allocation.write(to, &bytes);
        }
        Work::Record { event, instance } => {
            state.posted.land_all();
            if let Some(event) = state.events.get_mut(&event) {
                event.reach(instance);
            }
        }
        Work::Born(allocation) => allocation.make_live(),
        Work::Free(allocation) => state.memory.free(&allocation),
        Work::Store { at: address, value, wide, fences } => {
            if fences {
                state.posted.land_all();
            } else {
                state.posted.land_over(address as usize..address as usize + 8);
            }
            store(state, address, value, wide)?;
        }
        Work::Wait { .. } | Work::Join | Work::Call { .. } => {}
    }
    Ok(())
}

fn store(state: &State, address: u64, value: u64, wide: bool) -> Result<(), Finding> {
    let bytes = if wide { 8 } else { 4 };
    let allocation = at(state, address, bytes, "stream write")?;
    let host = allocation.host(address);
    // SAFETY: found above, alignment checked by the caller; the host reads it at any time, hence
    // atomics.
    unsafe {
        if wide {
            AtomicU64::from_ptr(host.cast()).store(value, Ordering::Release);
        } else {
            AtomicU32::from_ptr(host.cast()).store(value as u32, Ordering::Release);
        }
    }
    allocation.written.set(address - allocation.base, bytes as u64);
    Ok(())
}

fn run(state: &mut State, launch: Launch) -> Result<(), Finding> {
    state.launches += 1;
    let seed = state.next_random();
    let grid = Grid {
        kernel: launch.kernel,
        params: launch.params,
        blocks: launch.blocks,
        threads: launch.threads,
        dynamic_shared: launch.shared,
        table: state.memory.table(),
        seed,
        number: state.launches,
        unfinished: launch.overlaps.then_some(state.unfinished),
        is_hopper: state.config.chip.capability.0 >= 9,
        releases_early: AtomicBool::new(false),
        sms: state.config.sms,
        cooperative: launch.cooperative,
        late_copies: match state.config.order {
            Order::Late => true,
            Order::Early => false,
            Order::Seeded => seed >> 32 & 3 != 0,
        },
        patience: state.config.patience,
        stop: AtomicBool::new(false),
        words: Words::default(),
    };
    let begin = Instant::now();
    let outcome = grid.run();
    state.executed += outcome.executed;
    // Its successor begins when all blocks have let it, or have ended: behind their waits, unless
    // one let it before.
    if !launch.overlaps || !grid.releases_early.load(Ordering::Relaxed) {
        state.unfinished = grid.number;
    }
    if state.config.verbose {
        let (name, seconds) = (&grid.kernel.name, begin.elapsed().as_secs_f64());
        let rate = outcome.executed as f64 / seconds / 1e6;
        eprintln!(
            "trail-cuda-emulator: {name} {:?}x{:?}: {} instructions, {seconds:.4} s, {rate:.0} M/s",
            grid.blocks, grid.threads, outcome.executed
        );
    }
    let mut findings = outcome.findings.into_iter();
    let first = findings.next();
    for finding in findings {
        state.report(finding);
    }
    first.map_or(Ok(()), Err)
}

/// Starts the thread that runs queued work after a while although no call waits for it: the host
/// may poll memory instead.
fn start_background() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let started = std::thread::Builder::new().name("trail-emu-device".into()).spawn(|| {
        loop {
            let mut state = lock();
            while !has_background_work(&state) {
                state = QUEUED.wait(state).unwrap_or_else(|broken| broken.into_inner());
            }
            let idle = Duration::from_micros(state.config.idle_us);
            drop(state);
            std::thread::sleep(idle);
            let state = lock();
            if has_background_work(&state) {
                let (state, _) = one(state);
                drop(state);
            }
        }
    });
    if let Err(error) = started {
        eprintln!("trail-cuda-emulator: no background thread: {error}");
    }
}

fn has_background_work(state: &State) -> bool {
    state.config.background && !(state.queue.is_empty() && state.posted.is_empty())
}
