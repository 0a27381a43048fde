//! Modules: PTX text to kernels, and their variables.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::chip::Chip;
use super::cubin;
use super::device::SHARED_DEFAULT;
use super::occupancy;
use super::state::{Handle, State, ready};
use super::{Answer, Code, api, error, put, run};
use crate::memory::{Kind, State as Life};
use crate::ptx::program::Kernel;
use crate::ptx::{PtxError, ast, decode, parser};
use crate::report::{Finding, Kind as Fault};

/// A loaded module.
#[derive(Default)]
pub(crate) struct Module {
    kernels: HashMap<String, Arc<Kernel>>,
    /// Device address and size of each variable.
    globals: HashMap<String, (u64, u64)>,
    /// Function handles given out, by name.
    handles: HashMap<String, Handle>,
    /// Device memory of its code: taken to be as long as its text.
    pub(crate) bytes: u64,
}

/// A kernel as the caller holds it.
pub(crate) struct Function {
    pub(crate) kernel: Arc<Kernel>,
    /// Dynamic shared memory that the caller allowed.
    pub(crate) max_dynamic_shared: u32,
}

/// Kernels by their module's text, for the next context that loads it: tests open many.
type Known = HashMap<String, HashMap<String, Arc<Kernel>>>;

fn known() -> &'static Mutex<Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kind of a module image.
enum Image<'a> {
    Ptx(&'a CStr),
    /// An ELF file: a cubin.
    Cubin,
    Fat,
}

/// # Safety
/// `image` points to a cubin, a fat binary or PTX text that ends in zero.
unsafe fn look<'a>(image: *const c_void) -> Image<'a> {
    let bytes = image.cast::<[u8; 4]>();
    // SAFETY: every image has four bytes: the shortest text that can be one, and both magic
    // numbers.
    let magic = unsafe { bytes.read_unaligned() };
    match magic {
        [0x7F, b'E', b'L', b'F'] => return Image::Cubin,
        [0x50, 0xED, 0x55, 0xBA] => return Image::Fat,
        _ => {}
    }
    // SAFETY: text ends in zero.
    Image::Ptx(unsafe { CStr::from_ptr(image.cast()) })
}

/// `length`: bytes of the image, where they are known.
fn load(image: *const c_void, length: Option<usize>) -> Result<Handle, Code> {
    let mut state = ready()?;
    if image.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the API's contract.
    let image_kind = unsafe { look(image) };
    let is_text = matches!(image_kind, Image::Ptx(_));
    let text = match image_kind {
        Image::Ptx(text) => text.to_string_lossy(),
        Image::Fat => return Err(error::NO_BINARY_FOR_GPU),
        Image::Cubin => {
            let target = state.config.chip.target.ok_or(error::NO_BINARY_FOR_GPU)?;
            // SAFETY: as above.
            let text = unsafe { cubin::text(image.cast(), length, target) };
            Cow::Owned(text.ok_or(error::NO_BINARY_FOR_GPU)?)
        }
    };
    if !state.config.chip.runs(&text) {
        return Err(error::NO_BINARY_FOR_GPU);
    }
    if is_text && !compiles(state.config.driver, &text) {
        return Err(error::UNSUPPORTED_PTX_VERSION);
    }
    let seen = lock(known()).get(&*text).cloned();
    let built = match seen {
        Some(kernels) => Ok(Module { kernels, ..Module::default() }),
        None => parser::parse(&text).and_then(|module| build(&mut state, &module)),
    };
    match built {
        Ok(module) if text.len() as u64 > state.free_bytes() => {
            drop(module);
            Err(error::OUT_OF_MEMORY)
        }
        Ok(mut module) => {
            module.bytes = text.len() as u64;
            // Kernels with variables know where those lie, which is another place each time.
            if module.globals.is_empty() {
                lock(known()).insert(text.into_owned(), module.kernels.clone());
            }
            let handle = state.handle();
            state.modules.insert(handle, module);
            Ok(handle)
        }
        Err(problem) => {
            let line =
                text.lines().nth(problem.line.saturating_sub(1) as usize).unwrap_or("").trim();
            state.report(Finding::host(Fault::Refused, format!("{problem} in `{line}`")));
            Err(error::INVALID_PTX)
        }
    }
}

/// True if a driver of this version compiles the text's `.version`: CUDA 12.4's is PTX 8.4.
fn compiles(driver: i32, text: &str) -> bool {
    let wanted = text.lines().find_map(|line| line.trim().strip_prefix(".version"));
    let wanted = wanted.and_then(|version| version.trim().split_once('.'));
    let Some((Ok(major), Ok(minor))) =
        wanted.map(|(major, minor)| (major.parse::<i32>(), minor.parse::<i32>()))
    else {
        return true;
    };
    (major, minor) <= (driver / 1000 - 4, driver % 1000 / 10)
}

/// Writes a word about `code` into the buffer for errors, if the options name one.
///
/// # Safety
/// As in the API: there are `count` options and values.
unsafe fn log(code: Code, count: usize, options: *const c_uint, values: *const *mut c_void) {
    let find = |option: c_uint| {
        (0..count).find_map(|at| {
            // SAFETY: the caller's promise.
            let (found, value) = unsafe { (options.add(at).read(), values.add(at).read()) };
            (found == option).then_some(value)
        })
    };
    if let (Some(buffer), Some(size)) = (find(5), find(6)) {
        let text = format!("the emulator refused the text with {code}");
        let bytes = text.len().min((size as usize).saturating_sub(1));
        // SAFETY: the buffer has `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), bytes);
            buffer.cast::<u8>().add(bytes).write(0);
        }
    }
}

fn build(state: &mut State, module: &ast::Module) -> Result<Module, PtxError> {
    let mut globals = HashMap::new();
    let on_device = || {
        module
            .variables
            .iter()
            .filter(|v| matches!(v.place, ast::Place::Global | ast::Place::Const))
    };
    for variable in on_device() {
        let allocation =
            state.memory.allocate(variable.size.max(1), Kind::Module, Life::Live, &variable.name);
        let allocation =
            allocation.ok_or_else(|| PtxError::at(0, "no memory for the variables"))?;
        globals.insert(variable.name.clone(), (allocation.base, variable.size));
    }
    let addresses: HashMap<String, u64> =
        globals.iter().map(|(name, &(at, _))| (name.clone(), at)).collect();
    for variable in on_device() {
        initialise(state, variable, &addresses);
    }
    let lines = Arc::new(module.lines.clone());
    let mut kernels = HashMap::new();
    for entry in module.functions.iter().filter(|function| function.is_entry) {
        kernels.insert(
            entry.name.clone(),
            Arc::new(decode::kernel(module, entry, &addresses, &lines)?),
        );
    }
    Ok(Module { kernels, globals, ..Module::default() })
}

/// Variables are zero where the text says nothing.
fn initialise(state: &mut State, variable: &ast::Variable, addresses: &HashMap<String, u64>) {
    let mut bytes = variable.init.clone();
    bytes.resize(variable.size as usize, 0);
    for (at, name, addend) in &variable.relocations {
        let at = *at as usize;
        if let (Some(address), Some(place)) = (addresses.get(name), bytes.get_mut(at..at + 8)) {
            place.copy_from_slice(&address.wrapping_add_signed(*addend).to_le_bytes());
        }
    }
    let base = addresses[&variable.name];
    if let Some(allocation) = state.memory.at_base(base).filter(|_| !bytes.is_empty()) {
        allocation.write(base, &bytes);
    }
}

/// # Safety
/// `name` is null or text that ends in zero.
unsafe fn text<'a>(name: *const c_char) -> Result<Cow<'a, str>, Code> {
    if name.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy())
}

fn function(module: Handle, name: &str) -> Result<Handle, Code> {
    let mut state = ready()?;
    let found = state.modules.get(&module).ok_or(error::INVALID_HANDLE)?;
    if let Some(&handle) = found.handles.get(name) {
        return Ok(handle);
    }
    let kernel = found.kernels.get(name).ok_or(error::NOT_FOUND)?.clone();
    let handle = state.handle();
    let max_dynamic_shared = SHARED_DEFAULT.saturating_sub(kernel.static_shared as u32);
    state.functions.insert(handle, Function { kernel, max_dynamic_shared });
    if let Some(module) = state.modules.get_mut(&module) {
        module.handles.insert(name.to_owned(), handle);
    }
    Ok(handle)
}

fn attribute(function: &Function, which: c_uint) -> Result<c_int, Code> {
    let kernel = &function.kernel;
    Ok(match which {
        0 => kernel.max_threads as c_int,
        1 => kernel.static_shared as c_int,
        2 => 0,
        3 => kernel.local_bytes as c_int,
        4 => occupancy::registers(kernel) as c_int,
        5 | 6 => 80,
        7 => 0,
        8 => function.max_dynamic_shared as c_int,
        9 => -1,
        _ => return Err(error::INVALID_VALUE),
    })
}

fn set_attribute(chip: &Chip, function: &mut Function, which: c_uint, value: c_int) -> Answer {
    match which {
        8 => {
            let value = u32::try_from(value).map_err(|_| error::INVALID_VALUE)?;
            if value + function.kernel.static_shared as u32 > chip.shared_per_block {
                return Err(error::INVALID_VALUE);
            }
            function.max_dynamic_shared = value;
            Ok(())
        }
        9 if (-1..=100).contains(&value) => Ok(()),
        _ => Err(error::INVALID_VALUE),
    }
}

api! {
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) {
        let handle = load(image, None)?;
        // SAFETY: the API's contract.
        unsafe { put(module, handle) }
    }

    fn cuModuleLoadDataEx(
        module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_uint,
        values: *mut *mut c_void) {
        // SAFETY: the API's contract.
        let handle = load(image, None).inspect_err(|&code| unsafe {
            log(code, count as usize, options, values)
        })?;
        // SAFETY: the API's contract.
        unsafe { put(module, handle) }
    }

    fn cuModuleLoadFatBinary(_module: *mut Handle, _image: *const c_void) {
        drop(ready()?);
        Err(error::NO_BINARY_FOR_GPU)
    }

    fn cuModuleLoad(module: *mut Handle, path: *const c_char) {
        // SAFETY: the API's contract.
        let path = unsafe { text(path)? };
        let mut bytes = std::fs::read(path.as_ref()).map_err(|_| error::FILE_NOT_FOUND)?;
        let length = bytes.len();
        bytes.extend([0; 4]);
        let handle = load(bytes.as_ptr().cast(), Some(length))?;
        // SAFETY: the API's contract.
        unsafe { put(module, handle) }
    }

    fn cuModuleUnload(module: Handle) {
        let mut state = run::wait_if_hung(ready()?);
        let module = state.modules.remove(&module).ok_or(error::INVALID_HANDLE)?;
        for handle in module.handles.values() {
            state.functions.remove(handle);
        }
        for (base, _) in module.globals.values() {
            if let Some(allocation) = state.memory.at_base(*base).cloned() {
                state.memory.free(&allocation);
            }
        }
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: *mut c_uint) {
        // SAFETY: the API's contract.
        unsafe { put(mode, 1) }
    }

    fn cuModuleGetFunction(handle: *mut Handle, module: Handle, name: *const c_char) {
        // SAFETY: the API's contract.
        let name = unsafe { text(name)? };
        let found = function(module, &name)?;
        // SAFETY: the API's contract.
        unsafe { put(handle, found) }
    }

    fn cuModuleGetGlobal_v2(at: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char) {
        // SAFETY: the API's contract.
        let name = unsafe { text(name)? };
        let state = ready()?;
        let module = state.modules.get(&module).ok_or(error::INVALID_HANDLE)?;
        let &(base, size) = module.globals.get(name.as_ref()).ok_or(error::NOT_FOUND)?;
        if !at.is_null() {
            // SAFETY: the API's contract.
            unsafe { put(at, base)? };
        }
        // SAFETY: null, or the API's contract.
        if bytes.is_null() { Ok(()) } else { unsafe { put(bytes, size as usize) } }
    }

    fn cuFuncGetAttribute(value: *mut c_int, which: c_uint, function: Handle) {
        let state = ready()?;
        let answer = attribute(
            state.functions.get(&function).ok_or(error::INVALID_HANDLE)?, which)?;
        // SAFETY: the API's contract.
        unsafe { put(value, answer) }
    }

    fn cuFuncSetAttribute(function: Handle, which: c_uint, value: c_int) {
        let mut state = ready()?;
        let chip = state.config.chip;
        let function = state.functions.get_mut(&function).ok_or(error::INVALID_HANDLE)?;
        set_attribute(chip, function, which, value)
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: c_uint) {
        ready()?.functions.get(&function).map(|_| ()).ok_or(error::INVALID_HANDLE)
    }

    fn cuFuncSetSharedMemConfig(function: Handle, _config: c_uint) {
        ready()?.functions.get(&function).map(|_| ()).ok_or(error::INVALID_HANDLE)
    }

    fn cuFuncGetModule(module: *mut Handle, function: Handle) {
        let state = ready()?;
        let owner = state.modules.iter().find(
            |(_, module)| module.handles.values().any(|&h| h == function));
        let (&handle, _) = owner.ok_or(error::INVALID_HANDLE)?;
        // SAFETY: the API's contract.
        unsafe { put(module, handle) }
    }

    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, size: *mut usize) {
        let state = ready()?;
        let function = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?;
        let param = function.kernel.params.get(index).ok_or(error::INVALID_VALUE)?;
        // SAFETY: the API's contract; the size may be null.
        unsafe {
            put(offset, param.offset as usize)?;
            if size.is_null() { Ok(()) } else { put(size, param.size as usize) }
        }
    }
}
