//! The examples of C and C++: compiled with every warning as an error, and run under the address
//! sanitizer. The header as C99 and C++17; and the symbols of the shared library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use trail_cli::OpenModel;
use trail_runtime::engine::Request;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of this test's program, where cargo leaves the libraries beside it.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folder = program.parent().expect("its folder").to_path_buf();
    assert!(folder.join("libtrail_rt.so").is_file(), "no library in {}", folder.display());
    folder
}

/// Output of a command that must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}{err}");
    // Warnings of the engine's start are no errors of the sanitizer's.
    assert!(!err.contains("Sanitizer"), "{err}");
    out.into_owned()
}

/// The command that compiles an example to a program, to be linked.
fn compiler(source: &str, compiler: &str, standard: &str, program: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.arg(standard).args(WARNINGS).arg("-I").arg(root().join("include"));
    command.arg(root().join("examples").join(source)).arg("-o").arg(program);
    command
}

/// Compiles an example against the shared library, and returns the program.
fn compile(source: &str, language: &str, standard: &str) -> PathBuf {
    let program = std::env::temp_dir().join(format!("{source}-{}", std::process::id()));
    let libraries = libraries();
    let mut command = compiler(source, language, standard, &program);
    command.args(["-g", "-fsanitize=address,undefined", "-L"]).arg(&libraries).arg("-ltrail_rt");
    run(command.arg(format!("-Wl,-rpath,{}", libraries.display())));
    program
}

/// Output of an example with these arguments.
fn example(source: &str, compiler: &str, standard: &str, arguments: &[PathBuf]) -> String {
    let program = compile(source, compiler, standard);
    let output = run(Command::new(&program).args(arguments));
    fs::remove_file(program).expect("it was there");
    output
}

/// Returns true if there is a compiler of C++. The README asks for one of C alone; CI has both.
fn has_cpp() -> bool {
    let is_there = Command::new("c++").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("no c++: what needs a compiler of C++ is left out");
    }
    is_there
}

fn demo() -> PathBuf {
    root().join("../assets/demo")
}

/// The greedy answer of the engine, without C.
fn answer(prompt: &str) -> String {
    let demo = demo().to_str().expect("UTF-8").to_owned();
    let model = OpenModel::open(&["--model".into(), demo]).expect("the bundled model");
    let tokens = model.setup().user_prompt(prompt).expect("a template");
    let mut request = Request::new(tokens, 200);
    request.sampling.temperature = 0.0;
    let answer = model.submit(request, Vec::new(), Default::default());
    let mut answer = answer.expect("room");
    let pieces = std::iter::from_fn(|| answer.next(Duration::from_secs(60)));
    pieces.map(|(_, piece)| piece).collect()
}

#[test]
fn c_answers_a_prompt() {
    for (prompt, reason) in
        [("Make a talk of Ann and Sue about bells.", 1), ("Tell me a story about a cat.", 2)]
    {
        let output = example("generate.c", "cc", "-std=c99", &[demo(), prompt.into()]);
        let (text, rest) = output
            .rsplit_once("\n")
            .and_then(|(text, _)| text.rsplit_once('\n'))
            .expect("the line after the answer");
        assert_eq!(text, answer(prompt));
        assert!(rest.contains(&format!("reason {reason};")), "{rest}");
        let predicted = rest.rsplit_once("; ").expect("a prediction").1;
        assert!(!predicted.starts_with('-') && !predicted.contains("again 0 times"), "{rest}");
    }
}

#[test]
fn c_schedules_another_engine() {
    let output = example("scheduler.c", "cc", "-std=c99", &[]);
    let means: Vec<f64> = output
        .lines()
        .filter_map(|line| line.strip_suffix(" s")?.rsplit_once(' ')?.1.parse().ok())
        .collect();
    assert!(means.len() == 2 && means[1] < 0.8 * means[0], "{output}");
    assert!(output.contains("refused: unknown policy"), "{output}");
}

/// By the libraries that docs/c.md names.
#[test]
fn the_static_library_needs_no_other_file() {
    let program = std::env::temp_dir().join(format!("static-{}", std::process::id()));
    let mut command = compiler("scheduler.c", "cc", "-std=c99", &program);
    command.arg(libraries().join("libtrail_rt.a"));
    run(command.args(["-lm", "-lpthread", "-ldl"]));
    let output = run(&mut Command::new(&program));
    fs::remove_file(program).expect("it was there");
    assert!(output.contains("refused: unknown policy"), "{output}");
}

#[test]
fn cpp_reads_the_probe() {
    if !has_cpp() {
        return;
    }
    let probe = demo().join("probe.safetensors");
    let output = example("probe.cpp", "c++", "-std=c++17", &[probe]);
    assert!(output.contains("more are expected"), "{output}");
    assert!(output.contains("refused: there is no place 2: the tracker has 2"), "{output}");
}

#[test]
fn the_header_compiles_alone() {
    let header = root().join("include/trail_rt.h");
    let both = [("cc", "c", "-std=c99"), ("c++", "c++", "-std=c++17")];
    let count = if has_cpp() { 2 } else { 1 };
    for (compiler, language, standard) in &both[..count] {
        let mut command = Command::new(compiler);
        command.args(WARNINGS).args([standard, "-fsyntax-only", "-x", language]);
        run(command.arg(&header));
    }
}

/// The list is `symbols.txt`: one that goes or changes its name breaks programs.
#[test]
fn the_symbols_are_those_of_the_list() {
    let library = libraries().join("libtrail_rt.so");
    let names = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let mut found: Vec<&str> =
        names.lines().filter_map(|line| line.rsplit_once(' ')).map(|(_, name)| name).collect();
    found.sort_unstable();
    let listed = fs::read_to_string(root().join("symbols.txt")).expect("the list");
    assert_eq!(found, listed.lines().collect::<Vec<_>>());
    let header = fs::read_to_string(root().join("include/trail_rt.h")).expect("the header");
    for name in found {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}
