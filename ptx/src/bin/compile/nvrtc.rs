//! NVRTC, loaded at run time: compiles CUDA C++ to PTX.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

type Program = *mut c_void;
type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type CompileProgram = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type DestroyProgram = unsafe extern "C" fn(*mut Program) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library's functions; the library stays loaded for the life of the process.
pub(crate) struct Nvrtc {
    create: CreateProgram,
    compile: CompileProgram,
    ptx_size: GetSize,
    ptx: GetText,
    log_size: GetSize,
    log: GetText,
    destroy: DestroyProgram,
    error: ErrorString,
    /// Version reported by NVRTC, `major.minor`.
    pub(crate) version: String,
}

/// A source with the headers that it may include, by include name.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) headers: &'a [(String, String)],
}

impl Nvrtc {
    /// Loads the library at `path`.
    pub(crate) fn load(path: &Path) -> Result<Nvrtc, String> {
        // SAFETY: NVRTC's initialisers have no preconditions.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| format!("{}: {error}", path.display()))?;
        let library: &'static Library = Box::leak(Box::new(library));
        fn symbol<T: Copy>(library: &'static Library, name: &str) -> Result<T, String> {
            // SAFETY: each type below is the function's prototype in nvrtc.h.
            let found = unsafe { library.get::<T>(name.as_bytes()) };
            found.map(|symbol| *symbol).map_err(|error| format!("{name}: {error}"))
        }
        let version: Version = symbol(library, "nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both places are valid for a write.
        unsafe { version(&mut major, &mut minor) };
        Ok(Nvrtc {
            create: symbol(library, "nvrtcCreateProgram")?,
            compile: symbol(library, "nvrtcCompileProgram")?,
            ptx_size: symbol(library, "nvrtcGetPTXSize")?,
            ptx: symbol(library, "nvrtcGetPTX")?,
            log_size: symbol(library, "nvrtcGetProgramLogSize")?,
            log: symbol(library, "nvrtcGetProgramLog")?,
            destroy: symbol(library, "nvrtcDestroyProgram")?,
            error: symbol(library, "nvrtcGetErrorString")?,
            version: format!("{major}.{minor}"),
        })
    }

    /// Compiles `source` to PTX; the error is the compiler's log. A warning is an error.
    pub(crate) fn compile(&self, source: &Source, flags: &[String]) -> Result<String, String> {
        let (name, text) = (c_string(source.name)?, c_string(source.text)?);
        let headers = source.headers.iter();
        let (names, texts): (Vec<_>, Vec<_>) = headers
            .map(|(name, text)| Ok((c_string(name)?, c_string(text)?)))
            .collect::<Result<Vec<_>, String>>()?
            .into_iter()
            .unzip();
        let (names, texts) = (pointers(&names), pointers(&texts));
        let mut program = ptr::null_mut();
        // SAFETY: all strings are terminated and outlive the call; both arrays have `len` elements.
        let code = unsafe {
            let count = names.len() as c_int;
            (self.create)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(code)?;
        let result = self.compile_program(program, flags);
        // SAFETY: `program` was created above and is destroyed once.
        unsafe { (self.destroy)(&mut program) };
        result
    }

    fn compile_program(&self, program: Program, flags: &[String]) -> Result<String, String> {
        let flags = flags.iter().map(|flag| c_string(flag)).collect::<Result<Vec<_>, _>>()?;
        let flags = pointers(&flags);
        // SAFETY: the program is alive, the array has `len` terminated strings.
        let code = unsafe { (self.compile)(program, flags.len() as c_int, flags.as_ptr()) };
        let log = self.text(program, self.log_size, self.log)?;
        if code != 0 || log.contains("warning") {
            return Err(log);
        }
        self.text(program, self.ptx_size, self.ptx)
    }

    fn text(&self, program: Program, size: GetSize, get: GetText) -> Result<String, String> {
        let mut bytes = 0;
        // SAFETY: the program is alive, the place is valid for a write.
        self.check(unsafe { size(program, &mut bytes) })?;
        let mut buffer = vec![0u8; bytes.max(1)];
        // SAFETY: the buffer has the size that the library asked for.
        self.check(unsafe { get(program, buffer.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&buffer).map_err(|error| error.to_string())?;
        Ok(text.to_string_lossy().into_owned())
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a static string for any code.
        let text = unsafe { CStr::from_ptr((self.error)(code)) };
        Err(format!("NVRTC: {}", text.to_string_lossy()))
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}
