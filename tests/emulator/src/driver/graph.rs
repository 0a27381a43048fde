//! Graphs, by capture of streams.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use super::launch;
use super::queue::{Launch, Work};
use super::run;
use super::state::{Handle, State, ready};
use super::stream::{self, canonical};
use super::{Answer, Code, api, error, put};
use crate::report::{Finding, Kind as Fault};

/// Operations with what each waits for; a node comes after its predecessors.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    number: usize,
    /// Of an executable: it has its memory on the device.
    is_uploaded: bool,
}

#[derive(Clone)]
struct Node {
    work: Work,
    after: Vec<usize>,
    /// Priority of the stream that it was captured on.
    priority: i32,
}

/// Device memory of a node of an executable that was uploaded, bytes: about what drivers take.
const NODE_BYTES: u64 = 64 << 10;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`, `_USE_NODE_PRIORITY`, and all flags.
const UPLOAD: u64 = 2;
const USE_NODE_PRIORITY: u64 = 8;
const FLAGS: u64 = 15;

/// A capture in progress.
pub(crate) struct Capture {
    graph: Graph,
    origin: Handle,
    /// The last nodes of each stream that takes part.
    pub(crate) ends: HashMap<Handle, Vec<usize>>,
    invalid: bool,
}

/// Node handles: a graph's number and the node's, shifted out of the way of other handles.
const NODE_BASE: usize = 0x6000_0000_0000;

fn node_handle(graph: usize, node: usize) -> Handle {
    NODE_BASE + (graph << 20) + node + 1
}

fn node_index(handle: Handle) -> Option<(usize, usize)> {
    let inside = handle.checked_sub(NODE_BASE + 1)?;
    Some((inside >> 20, inside & 0xF_FFFF))
}

impl State {
    /// Records `work` instead of queuing it.
    pub(crate) fn capture(&mut self, capture: u64, stream: Handle, work: Work) -> Answer {
        let priority = self.streams.get(&stream).map_or(0, |stream| stream.priority);
        let capture = self.captures.get_mut(&capture).ok_or(error::STREAM_CAPTURE_INVALIDATED)?;
        let after = capture.ends.get(&stream).cloned().unwrap_or_default();
        capture.graph.nodes.push(Node { work, after, priority });
        capture.ends.insert(stream, vec![capture.graph.nodes.len() - 1]);
        Ok(())
    }

    /// A call that a capture of `stream` forbids: the capture ends badly.
    pub(crate) fn invalidate_capture(&mut self, stream: Handle) -> Answer {
        let Some(number) = self.streams.get(&stream).and_then(|stream| stream.capture) else {
            return Ok(());
        };
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.invalid = true;
        }
        Err(error::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Device memory of graphs that were uploaded, bytes.
    pub(crate) fn graph_bytes(&self) -> u64 {
        let uploaded = self.executables.values().filter(|graph| graph.is_uploaded);
        uploaded.map(|graph| graph.nodes.len() as u64 * NODE_BYTES).sum()
    }

    /// Takes the memory of an executable, at the latest when it is launched first.
    fn upload(&mut self, executable: Handle) -> Answer {
        let graph = self.executables.get(&executable).ok_or(error::INVALID_HANDLE)?;
        if graph.is_uploaded {
            return Ok(());
        }
        let bytes = graph.nodes.len() as u64 * NODE_BYTES;
        if bytes > self.free_bytes() {
            return Err(error::OUT_OF_MEMORY);
        }
        if let Some(graph) = self.executables.get_mut(&executable) {
            graph.is_uploaded = true;
        }
        Ok(())
    }

    /// `stream` waits for an event recorded in a capture, and so takes part in it.
    pub(crate) fn join_capture(&mut self, capture: u64, stream: Handle, nodes: &[usize]) -> Answer {
        let Some(found) = self.captures.get_mut(&capture) else {
            return Err(error::CAPTURED_EVENT);
        };
        let Some(joining) = self.streams.get_mut(&stream) else {
            return Err(error::STREAM_CAPTURE_IMPLICIT);
        };
        if joining.capture.is_some_and(|other| other != capture) {
            return Err(error::STREAM_CAPTURE_MERGE);
        }
        joining.capture = Some(capture);
        let ends = found.ends.entry(stream).or_default();
        ends.extend(nodes.iter().filter(|node| !ends.contains(node)).copied().collect::<Vec<_>>());
        Ok(())
    }
}

impl Capture {
    /// Does everything captured come before the origin's end?
    fn is_joined(&self) -> bool {
        let mut seen = HashSet::new();
        let mut stack = self.ends.get(&self.origin).cloned().unwrap_or_default();
        while let Some(node) = stack.pop() {
            if seen.insert(node) {
                stack.extend(&self.graph.nodes[node].after);
            }
        }
        seen.len() == self.graph.nodes.len()
    }
}

fn begin(stream: Handle) -> Answer {
    let mut state = ready()?;
    let stream = canonical(&state, stream)?;
    let number = state.handle();
    let Some(found) = state.streams.get_mut(&stream) else {
        return Err(error::STREAM_CAPTURE_UNSUPPORTED);
    };
    if found.capture.is_some() {
        return Err(error::ILLEGAL_STATE);
    }
    found.capture = Some(number as u64);
    let graph = Graph { number: number >> 6 & 0xFF_FFFF, ..Graph::default() };
    let ends = HashMap::from([(stream, Vec::new())]);
    state.captures.insert(number as u64, Capture { graph, origin: stream, ends, invalid: false });
    Ok(())
}

fn end(stream: Handle) -> Result<Handle, Code> {
    let mut state = ready()?;
    let stream = canonical(&state, stream)?;
    let number =
        state.streams.get(&stream).and_then(|stream| stream.capture).ok_or(error::ILLEGAL_STATE)?;
    if state.captures.get(&number).is_none_or(|capture| capture.origin != stream) {
        return Err(error::STREAM_CAPTURE_UNMATCHED);
    }
    let capture = state.captures.remove(&number).ok_or(error::ILLEGAL_STATE)?;
    state
        .streams
        .values_mut()
        .filter(|stream| stream.capture == Some(number))
        .for_each(|stream| stream.capture = None);
    if capture.invalid {
        return Err(error::STREAM_CAPTURE_INVALIDATED);
    }
    if !capture.is_joined() {
        return Err(error::STREAM_CAPTURE_UNJOINED);
    }
    let handle = state.handle();
    state.graphs.insert(handle, Arc::new(Mutex::new(capture.graph)));
    Ok(handle)
}

fn instantiate(graph: Handle, flags: u64) -> Result<Handle, Code> {
    let mut state = ready()?;
    if !state.config.graphs {
        return Err(error::NOT_SUPPORTED);
    }
    if flags & !FLAGS != 0 {
        return Err(error::INVALID_VALUE);
    }
    let graph = state.graphs.get(&graph).ok_or(error::INVALID_HANDLE)?;
    let copy = graph.lock().unwrap_or_else(|broken| broken.into_inner()).clone();
    let handle = state.handle();
    let kernels = || copy.nodes.iter().filter(|node| matches!(node.work, Work::Launch(_)));
    let first = kernels().next().map(|node| node.priority);
    if flags & USE_NODE_PRIORITY == 0 && kernels().any(|node| Some(node.priority) != first) {
        let detail = "a graph of streams of several priorities has one, as it was instantiated \
                      without CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY";
        state.report(Finding::host(Fault::Host, detail.to_owned()));
    }
    state.executables.insert(handle, copy);
    if flags & UPLOAD != 0 {
        state.upload(handle)?;
    }
    Ok(handle)
}

/// Queues a graph's nodes, each behind its predecessors, and their meeting point as the stream's
/// last operation.
fn run_graph(executable: Handle, stream: Handle) -> Answer {
    let mut state = ready()?;
    let stream = canonical(&state, stream)?;
    if state.streams.get(&stream).is_some_and(|stream| stream.capture.is_some()) {
        return super::unsupported::say("cuGraphLaunch into a captured stream");
    }
    state.upload(executable)?;
    let graph = state.executables.get(&executable).ok_or(error::INVALID_HANDLE)?.clone();
    let before = stream::ends(&state, stream);
    let mut ids = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        if matches!(node.work, Work::Launch(_)) {
            state.config.count(super::config::Target::Launch)?;
        }
        let after = if node.after.is_empty() {
            before.clone()
        } else {
            node.after.iter().map(|&at| ids[at]).collect()
        };
        let id = state.queue.push(node.work.clone(), after);
        ids.push(id);
    }
    ids.extend(before);
    let (state, _) = stream::queue_after(state, stream, Work::Join, ids);
    drop(state);
    run::notice();
    Ok(())
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
struct KernelNodeParams {
    function: Handle,
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    params: *const *const c_void,
    extra: *const *const c_void,
    kernel: Handle,
    context: Handle,
}

fn set_kernel_params(executable: Handle, node: Handle, params: &KernelNodeParams) -> Answer {
    let mut state = ready()?;
    let function = if params.function == 0 { params.kernel } else { params.function };
    let kernel = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?.kernel.clone();
    // SAFETY: the API's contract.
    let bytes = unsafe { launch::arguments(&kernel, params.params, params.extra)? };
    let new = |cooperative, overlaps| Launch {
        kernel: kernel.clone(),
        params: bytes.clone(),
        blocks: params.blocks,
        threads: params.threads,
        shared: params.shared,
        cooperative,
        overlaps,
    };
    launch::check(&state, function, &new(false, false))?;
    let graph = state.executables.get_mut(&executable).ok_or(error::INVALID_HANDLE)?;
    let (number, at) = node_index(node).ok_or(error::INVALID_HANDLE)?;
    match graph.nodes.get_mut(at).map(|node| &mut node.work) {
        Some(Work::Launch(old)) if number == graph.number => {
            *old = new(old.cooperative, old.overlaps);
            Ok(())
        }
        _ => Err(error::GRAPH_EXEC_UPDATE_FAILURE),
    }
}

fn node_type(work: &Work) -> c_uint {
    match work {
        Work::Launch(_) => 0,
        Work::ToDevice { .. } | Work::ToHost { .. } | Work::Within { .. } => 1,
        Work::Fill { .. } => 2,
        Work::Call { .. } => 3,
        Work::Join => 5,
        Work::Record { .. } => 7,
        Work::Born(_) => 10,
        Work::Free(_) => 11,
        Work::Wait { .. } | Work::Store { .. } => 12,
    }
}

api! {
    fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_uint) { begin(stream) }

    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) {
        let handle = end(stream)?;
        // SAFETY: the API's contract.
        unsafe { put(graph, handle) }
    }

    fn cuStreamIsCapturing(stream: Handle, status: *mut c_uint) {
        let state = ready()?;
        let stream = canonical(&state, stream)?;
        let capturing = state.streams.get(&stream).is_some_and(|stream| stream.capture.is_some());
        // SAFETY: the API's contract.
        unsafe { put(status, c_uint::from(capturing)) }
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: *mut c_uint, id: *mut u64, graph: *mut Handle,
        nodes: *mut *const Handle, count: *mut usize) {
        let state = ready()?;
        let stream = canonical(&state, stream)?;
        let capture = state.streams.get(&stream).and_then(|stream| stream.capture);
        if !graph.is_null() || !nodes.is_null() || !count.is_null() {
            return super::unsupported::say("cuStreamGetCaptureInfo for more than status and id");
        }
        // SAFETY: the API's contract; the id may be null.
        unsafe {
            put(status, c_uint::from(capture.is_some()))?;
            if id.is_null() { Ok(()) } else { put(id, capture.unwrap_or(0)) }
        }
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        // SAFETY: the API's contract.
        unsafe { put(mode, 0) }
    }

    fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64) {
        let handle = instantiate(graph, flags)?;
        // SAFETY: the API's contract.
        unsafe { put(executable, handle) }
    }

    fn cuGraphInstantiateWithParams(executable: *mut Handle, graph: Handle, _params: *mut c_void) {
        let handle = instantiate(graph, 0)?;
        // SAFETY: the API's contract.
        unsafe { put(executable, handle) }
    }

    fn cuGraphLaunch(executable: Handle, stream: Handle) { run_graph(executable, stream) }

    fn cuGraphUpload(executable: Handle, _stream: Handle) {
        ready()?.upload(executable)
    }

    fn cuGraphDestroy(graph: Handle) {
        ready()?.graphs.remove(&graph).map(|_| ()).ok_or(error::INVALID_HANDLE)
    }

    fn cuGraphExecDestroy(executable: Handle) {
        ready()?.executables.remove(&executable).map(|_| ()).ok_or(error::INVALID_HANDLE)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) {
        let state = ready()?;
        let graph = state.graphs.get(&graph).ok_or(error::INVALID_HANDLE)?;
        let graph = graph.lock().unwrap_or_else(|broken| broken.into_inner());
        if count.is_null() {
            return Err(error::INVALID_VALUE);
        }
        // SAFETY: the API's contract: with `nodes` given, `count` says how many fit.
        unsafe {
            if !nodes.is_null() {
                let fit = count.read().min(graph.nodes.len());
                (0..fit).for_each(|at| nodes.add(at).write(node_handle(graph.number, at)));
            }
            count.write(graph.nodes.len());
        }
        Ok(())
    }

    fn cuGraphNodeGetType(node: Handle, kind: *mut c_uint) {
        let state = ready()?;
        let (number, at) = node_index(node).ok_or(error::INVALID_HANDLE)?;
        let found = state.graphs.values().find_map(|graph| {
            let graph = graph.lock().unwrap_or_else(|broken| broken.into_inner());
            (graph.number == number).then(
                || graph.nodes.get(at).map(|node| node_type(&node.work))).flatten()
        });
        let value = found.ok_or(error::INVALID_HANDLE)?;
        // SAFETY: the API's contract.
        unsafe { put(kind, value) }
    }

    fn cuGraphExecKernelNodeSetParams_v2(executable: Handle, node: Handle, params: *const c_void) {
        if params.is_null() {
            return Err(error::INVALID_VALUE);
        }
        // SAFETY: the API's contract.
        set_kernel_params(executable, node, unsafe { &*params.cast::<KernelNodeParams>() })
    }

    fn cuDeviceGetGraphMemAttribute(_device: c_int, _attribute: c_uint, value: *mut u64) {
        // SAFETY: the API's contract.
        unsafe { put(value, 0) }
    }
}
