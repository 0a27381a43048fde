//! Launches.

use std::ffi::{c_uint, c_void};

use super::config::Target;
use super::occupancy;
use super::queue::{Launch, Work};
use super::state::{Handle, State, ready};
use super::stream::{canonical, queue};
use super::{Answer, Code, api, error};
use crate::exec::cluster::RANKS;
use crate::exec::shared::WARPS;
use crate::ptx::program::Kernel;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct Config {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    count: c_uint,
}

/// `CUlaunchAttribute`: an id and a union of 64 bytes.
#[repr(C)]
struct Attribute {
    id: c_uint,
    pad: c_uint,
    value: [c_uint; 16],
}

const ATTRIBUTE_IGNORE: c_uint = 0;
const ATTRIBUTE_COOPERATIVE: c_uint = 2;
const ATTRIBUTE_CLUSTER: c_uint = 4;
/// Least driver that records [`ATTRIBUTE_OVERLAPS`].
const RECORDS_OVERLAP: i32 = 12030;
/// Programmatic stream serialization: the kernel may begin before its predecessor has ended.
const ATTRIBUTE_OVERLAPS: c_uint = 6;

/// Copies the arguments of a launch.
///
/// # Safety
/// `params` holds a pointer to each parameter, or `extra` describes a buffer with all parameters,
/// as the API says.
pub(crate) unsafe fn arguments(
    kernel: &Kernel,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Result<Vec<u8>, Code> {
    let mut bytes = vec![0; kernel.param_bytes as usize];
    if params.is_null() && !extra.is_null() {
        // SAFETY: `extra` is a list of pairs (1: buffer, 2: size, 0: end).
        return unsafe { packed(bytes, extra) };
    }
    for (index, param) in kernel.params.iter().enumerate() {
        if params.is_null() {
            return Err(error::INVALID_VALUE);
        }
        // SAFETY: there are as many pointers as parameters.
        let from = unsafe { params.add(index).read() };
        if from.is_null() {
            return Err(error::INVALID_VALUE);
        }
        let to = &mut bytes[param.offset as usize..(param.offset + param.size) as usize];
        // SAFETY: each pointer leads to a value of the parameter's size.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), to.as_mut_ptr(), to.len()) };
    }
    Ok(bytes)
}

/// # Safety
/// As [`arguments`].
unsafe fn packed(mut bytes: Vec<u8>, extra: *const *const c_void) -> Result<Vec<u8>, Code> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    let mut at = 0;
    loop {
        // SAFETY: the list ends with 0; a key is followed by its value.
        let key = unsafe { extra.add(at).read() } as usize;
        if key == 0 {
            break;
        }
        // SAFETY: as above.
        let value = unsafe { extra.add(at + 1).read() };
        match key {
            1 => buffer = value.cast(),
            // SAFETY: the value of key 2 points to a size.
            2 => size = unsafe { value.cast::<usize>().read() },
            _ => return Err(error::INVALID_VALUE),
        }
        at += 2;
    }
    if buffer.is_null() || size < bytes.len() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the buffer has `size` bytes, at least as many as are copied.
    unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), bytes.len()) };
    Ok(bytes)
}

/// The checks that a driver makes of a launch's shape.
pub(crate) fn check(state: &State, function: Handle, launch: &Launch) -> Answer {
    let (chip, sms) = (state.config.chip, state.config.sms);
    let function = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?;
    let ([bx, by, bz], [tx, ty, tz]) = (launch.blocks, launch.threads);
    let dims = [bx, by, bz, tx, ty, tz];
    if dims.contains(&0)
        || by > 65535
        || bz > 65535
        || bx > i32::MAX as u32
        || tx > 1024
        || ty > 1024
        || tz > 64
    {
        return Err(error::INVALID_VALUE);
    }
    let threads = u64::from(tx) * u64::from(ty) * u64::from(tz);
    if threads > u64::from(launch.kernel.max_threads.min(1024)) {
        return Err(error::INVALID_VALUE);
    }
    let cluster = launch.kernel.cluster;
    if launch.blocks.iter().zip(cluster).any(|(blocks, of)| of == 0 || blocks % of != 0) {
        return Err(error::INVALID_VALUE);
    }
    let ranks: u32 = cluster.iter().product();
    let warps = u64::from(ranks) * threads.div_ceil(32);
    if ranks as usize > RANKS || warps > WARPS as u64 {
        return super::unsupported::say("clusters of more than 8 blocks or 32 warps");
    }
    if launch.shared > function.max_dynamic_shared
        || u64::from(launch.shared) + launch.kernel.static_shared > u64::from(chip.shared_per_block)
    {
        return Err(error::INVALID_VALUE);
    }
    if launch.cooperative && !state.config.cooperative {
        return Err(error::NOT_SUPPORTED);
    }
    if launch.cooperative {
        let each = occupancy::blocks(chip, &launch.kernel, threads as u32, launch.shared);
        let resident = each.max(1) * sms;
        if u64::from(bx) * u64::from(by) * u64::from(bz) > u64::from(resident) {
            return Err(error::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    debug_assert!(threads <= u64::from(chip.threads));
    Ok(())
}

/// Attributes of a launch that matter here.
#[derive(Clone, Copy, Default)]
struct Attributes {
    cooperative: bool,
    overlaps: bool,
}

fn launch(
    function: Handle,
    (blocks, threads, shared): ([u32; 3], [u32; 3], u32),
    stream: Handle,
    params: *const *const c_void,
    extra: *const *const c_void,
    Attributes { cooperative, overlaps }: Attributes,
) -> Answer {
    let mut state = ready()?;
    let kernel = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?.kernel.clone();
    // SAFETY: the API's contract.
    let params = unsafe { arguments(&kernel, params, extra)? };
    let launch = Launch { kernel, params, blocks, threads, shared, cooperative, overlaps };
    check(&state, function, &launch)?;
    state.config.count(Target::Launch)?;
    if overlaps && state.config.driver < RECORDS_OVERLAP {
        let stream = canonical(&state, stream)?;
        state.invalidate_capture(stream)?;
    }
    queue(state, stream, Work::Launch(launch)).map(|_| ())
}

api! {
    fn cuLaunchKernel(
        function: Handle, bx: c_uint, by: c_uint, bz: c_uint, tx: c_uint, ty: c_uint, tz: c_uint,
        shared: c_uint,
        stream: Handle, params: *const *const c_void, extra: *const *const c_void) {
        let attributes = Attributes::default();
        launch(function, ([bx, by, bz], [tx, ty, tz], shared), stream, params, extra, attributes)
    }

    fn cuLaunchCooperativeKernel(
        function: Handle, bx: c_uint, by: c_uint, bz: c_uint, tx: c_uint, ty: c_uint, tz: c_uint,
        shared: c_uint,
        stream: Handle, params: *const *const c_void) {
        launch(function, ([bx, by, bz], [tx, ty, tz], shared), stream, params, std::ptr::null(),
            Attributes { cooperative: true, overlaps: false })
    }

    fn cuLaunchKernelEx(
        config: *const Config, function: Handle, params: *const *const c_void,
        extra: *const *const c_void) {
        if config.is_null() {
            return Err(error::INVALID_VALUE);
        }
        // SAFETY: the API's contract.
        let config = unsafe { &*config };
        let mut attributes = Attributes::default();
        for at in 0..config.count as usize {
            // SAFETY: there are `count` attributes.
            let attribute = unsafe { &*config.attributes.add(at) };
            match attribute.id {
                ATTRIBUTE_COOPERATIVE => attributes.cooperative = attribute.value[0] != 0,
                ATTRIBUTE_OVERLAPS => attributes.overlaps = attribute.value[0] != 0,
                ATTRIBUTE_CLUSTER if attribute.value[..3] != [1, 1, 1] =>
                    return super::unsupported::say("cuLaunchKernelEx with the size of clusters"),
                ATTRIBUTE_IGNORE | ATTRIBUTE_CLUSTER => {}
                _ => return Err(error::INVALID_VALUE),
            }
        }
        launch(function, (config.blocks, config.threads, config.shared), config.stream, params,
            extra, attributes)
    }
}
