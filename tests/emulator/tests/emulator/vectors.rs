//! Single instructions over many inputs: what a device computes, written by
//!
//!     TRAIL_TEST_DRIVER=real TRAIL_VECTORS=vectors/NAME.txt emulator --exact vectors::are_recorded
//!
//! and compared with the emulator ever after. The kernels are in ptx/vectors.cu.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use half::bf16;

use crate::common::{Gpu, Module};

const VECTORS: &str = include_str!("ptx/vectors.ptx");
/// Bit patterns of f32 that each approximation is given, evenly over all; on a device and here.
const MANY: u32 = 1 << 24;
const FEW: u32 = 1 << 12;
/// Those that are written down.
const SAMPLES: u32 = 64;
/// Tiles that are multiplied.
const TILES: usize = 64;

/// An approximation: its reference, the value below which its error is absolute, and the error in
/// units of the last place that the PTX manual allows (rounded up).
struct Approximation {
    name: &'static str,
    reference: fn(f64) -> f64,
    floor: f64,
    bound: f64,
}

/// In the order of the kernel's numbers. The manual states sine and cosine within pi, and lg2 by a
/// relative error of 2^-22, which is up to four units.
const APPROXIMATIONS: [Approximation; 6] = [
    Approximation { name: "ex2", reference: f64::exp2, floor: 0.0, bound: 2.0 },
    Approximation { name: "lg2", reference: f64::log2, floor: 1.0, bound: 4.0 },
    Approximation { name: "rcp", reference: f64::recip, floor: 0.0, bound: 1.0 },
    Approximation { name: "sin", reference: f64::sin, floor: 1.0, bound: 6.0 },
    Approximation { name: "cos", reference: f64::cos, floor: 1.0, bound: 6.0 },
    Approximation { name: "rsqrt", reference: |x| x.sqrt().recip(), floor: 0.0, bound: 2.0 },
];
/// Instructions whose results are defined to the bit, in the order of the kernel's numbers.
const EXACT: [&str; 9] = [
    "cvt.rn.bf16x2.f32",
    "cvt.rni.u64.f64",
    "cvt.rpi.u64.f64",
    "cvt.rn.f32.f64",
    "min.f32",
    "max.f32",
    "cvt.rzi.s32.f32",
    "min.f64",
    "max.f64",
];

/// Bit patterns by name, as one line a name in a file.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record(BTreeMap<String, Vec<u64>>);

impl Record {
    fn parse(text: &str) -> Record {
        let line = |line: &str| {
            let (name, values) = line.split_once(':').expect("name: values");
            let value = |word| u64::from_str_radix(word, 16).expect("a number in base 16");
            (name.to_owned(), values.split_whitespace().map(value).collect())
        };
        Record(text.lines().map(line).collect())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, values) in &self.0 {
            write!(text, "{name}:").unwrap();
            values.iter().for_each(|value| write!(text, " {value:x}").unwrap());
            text.push('\n');
        }
        text
    }

    /// Runs all kernels, the approximations on `many` inputs.
    fn of_device(many: u32) -> Record {
        let gpu = Gpu::new();
        let module = gpu.load(VECTORS).unwrap();
        let mut record = Record::default();
        for op in 0..APPROXIMATIONS.len() {
            record.approximate(&gpu, &module, op, many);
        }
        for op in 0..EXACT.len() {
            record.exact(&gpu, &module, op);
        }
        let at = gpu.upload(&[0u32; 192]);
        module.launch("shuffles", 1, 32, 0, vec![at.into()]).unwrap();
        record.add("shuffles", gpu.download::<u32>(at, 192).unwrap());
        gpu.free(at);
        record.tiles(&gpu, &module);
        drop(module);
        record
    }

    fn add<T: Into<u64>>(&mut self, name: &str, values: Vec<T>) {
        self.0.insert(name.to_owned(), values.into_iter().map(Into::into).collect());
    }

    /// The largest error of an approximation in thousandths of a unit of the last place, its input,
    /// and some results.
    fn approximate(&mut self, gpu: &Gpu, module: &Module, op: usize, many: u32) {
        let Approximation { name, reference, floor, .. } = &APPROXIMATIONS[op];
        // Odd, so that the last bits of the inputs differ.
        let stride = (u32::MAX / many) | 1;
        let at = gpu.alloc(many as usize * 4);
        let arguments =
            vec![at.into(), (op as i32).into(), 0u32.into(), stride.into(), (many as i32).into()];
        module.launch("approximate", many.div_ceil(256), 256, 0, arguments).unwrap();
        let results = gpu.download::<u32>(at, many as usize).unwrap();
        gpu.free(at);
        let mut worst = (0.0, 0);
        for (index, &bits) in results.iter().enumerate() {
            let input = (index as u32).wrapping_mul(stride);
            let exact = reference(f64::from(f32::from_bits(input)));
            if is_stated(op, f32::from_bits(input), exact) {
                let error = error_in_ulps(f64::from(f32::from_bits(bits)), exact, *floor);
                worst = if error > worst.0 { (error, input) } else { worst };
            }
        }
        let thousandths = (worst.0 * 1e3) as u32;
        self.add(&format!("{name}.worst"), vec![thousandths, worst.1]);
        let few = (0..SAMPLES).map(|sample| results[(sample * (many / SAMPLES)) as usize]);
        if many == MANY {
            self.add(&format!("{name}.samples"), few.collect());
        }
    }

    fn exact(&mut self, gpu: &Gpu, module: &Module, op: usize) {
        let wide = EXACT[op].ends_with("f64");
        let specials: Vec<u64> = match wide {
            true => SPECIAL.iter().map(|x| x.to_bits()).collect(),
            false => SPECIAL.iter().map(|&x| u64::from((x as f32).to_bits())).collect(),
        };
        let pairs = specials.iter().flat_map(|&a| specials.iter().map(move |&b| (a, b)));
        let (a, b): (Vec<u64>, Vec<u64>) = pairs.unzip();
        let n = a.len();
        let (a, b, out) = (gpu.upload(&a), gpu.upload(&b), gpu.alloc(n * 8));
        let arguments = vec![out.into(), (op as i32).into(), a.into(), b.into(), (n as i32).into()];
        module.launch("exact", n.div_ceil(128) as u32, 128, 0, arguments).unwrap();
        self.add(EXACT[op], gpu.download::<u64>(out, n).unwrap());
        [a, b, out].into_iter().for_each(|at| gpu.free(at));
    }

    fn tiles(&mut self, gpu: &Gpu, module: &Module) {
        let Tiles { a, b, c } = Tiles::new();
        let (a, b, c) = (gpu.upload(&a), gpu.upload(&b), gpu.upload(&c));
        let out = gpu.alloc(TILES * 128 * 4);
        let arguments = vec![out.into(), a.into(), b.into(), c.into()];
        module.launch("tiles", TILES as u32, 32, 0, arguments).unwrap();
        self.add("tiles", gpu.download::<u32>(out, TILES * 128).unwrap());
        [a, b, c, out].into_iter().for_each(|at| gpu.free(at));
    }

    /// Lines for what a device computes otherwise than the emulator leads one to expect.
    fn surprises(&self, emulator: &Record) -> Vec<String> {
        let mut found = Vec::new();
        for name in EXACT.into_iter().chain(["shuffles"]) {
            if self.0.get(name) != emulator.0.get(name) {
                found.push(format!("{name}: {:x?} here", emulator.0.get(name)));
            }
        }
        for Approximation { name, bound, .. } in &APPROXIMATIONS {
            let worst = self.0.get(&format!("{name}.worst")).map_or(u64::MAX, |worst| worst[0]);
            if worst as f64 > bound * 1e3 {
                found.push(format!("{name}: {worst} thousandths of a unit of the last place"));
            }
        }
        let tiles = self.0.get("tiles").cloned().unwrap_or_default();
        let off = Tiles::new().off(&tiles);
        found.extend(off.map(|at| format!("tiles: sum {at} is off")));
        found
    }
}

/// Values at which conversions and comparisons have rules of their own.
const SPECIAL: [f64; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    1.00390625,
    1.01171875,
    1e-40,
    3e38,
    -3e38,
    1e300,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

/// Returns true if the manual states the error for `input`; subnormal numbers are flushed.
fn is_stated(op: usize, input: f32, exact: f64) -> bool {
    let in_range = op != 3 && op != 4 || input.abs() <= std::f32::consts::PI;
    let is_normal = |x: f64| x.abs() >= f64::from(f32::MIN_POSITIVE);
    let is_finite = exact.is_finite() && exact.abs() <= f64::from(f32::MAX);
    in_range && input.is_normal() && is_finite && (is_normal(exact) || op == 1 || op == 3)
}

fn error_in_ulps(found: f64, exact: f64, floor: f64) -> f64 {
    let ulp = exact.abs().max(floor).log2().floor().exp2() * f64::from(f32::EPSILON);
    let error = (found - exact).abs() / ulp;
    if error.is_finite() { error } else { f64::from(u16::MAX) }
}

/// Operands of the tiles: in half the tiles one large product and small ones in other places of the
/// sum, so that the width of the adder shows; the others are random.
struct Tiles {
    a: Vec<u16>,
    b: Vec<u16>,
    c: Vec<f32>,
}

impl Tiles {
    fn new() -> Tiles {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let bits = |x: f32| bf16::from_f32(x).to_bits();
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for tile in 0..TILES {
            let is_probe = tile < TILES / 2;
            for row in 0..16 {
                for k in 0..16 {
                    let small = ((tile % 32) as f32 - 40.0).exp2();
                    a.push(bits(match (is_probe, k == row) {
                        (true, true) => 1.0,
                        (true, false) => small,
                        (false, _) => next(),
                    }));
                }
            }
            b.extend((0..128).map(|_| bits(if is_probe { 1.0 } else { next() })));
            c.extend((0..128).map(|_| if is_probe { 0.0 } else { next() }));
        }
        Tiles { a, b, c }
    }

    /// The first of `sums` beyond what two steps of eight products may lose: each addend is cut at
    /// the largest exponent with one extra bit, so five roundings in the sum of all magnitudes.
    fn off(&self, sums: &[u64]) -> Option<usize> {
        let wide = |bits: u16| f64::from(bf16::from_bits(bits).to_f32());
        let ok = |at: usize| {
            let (tile, row, column) = (at / 128, at / 8 % 16, at % 8);
            let mut exact = f64::from(self.c[at]);
            let mut magnitude = exact.abs();
            for k in 0..16 {
                let a = wide(self.a[tile * 256 + row * 16 + k]);
                let product = a * wide(self.b[tile * 128 + k * 8 + column]);
                exact += product;
                magnitude += product.abs();
            }
            let found = f64::from(f32::from_bits(*sums.get(at).unwrap_or(&u64::MAX) as u32));
            (found - exact).abs() <= 5.0 * 2f64.powi(-22) * magnitude
        };
        (0..TILES * 128).find(|&at| !ok(at))
    }
}

/// Writes the record of a device where `TRAIL_VECTORS` names a file; without one the emulator's is
/// made, which its own rules must expect.
#[test]
fn are_recorded() {
    let session = trail_cuda_emulator::session();
    let many = if session.emulator().is_none() { MANY } else { FEW };
    let record = Record::of_device(many);
    if let Some(file) = std::env::var_os("TRAIL_VECTORS") {
        std::fs::write(file, record.text()).unwrap();
    }
    assert_eq!(Record::parse(&record.text()), record);
    assert_eq!(record.surprises(&record), Vec::<String>::new());
}

#[test]
fn of_devices_are_what_the_emulator_leads_one_to_expect() {
    let _session = trail_cuda_emulator::session();
    let emulator = Record::of_device(FEW);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    for file in std::fs::read_dir(folder).into_iter().flatten() {
        let path = file.unwrap().path();
        let device = Record::parse(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(device.surprises(&emulator), Vec::<String>::new(), "{}", path.display());
    }
}

/// An H200's sums of products to the bit. In a separate process, as the settings are read once.
#[test]
fn of_hoppers_tensor_cores_are_those_of_device_numerics() {
    let file = std::env::temp_dir().join(format!("trail-vectors-{}.txt", std::process::id()));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "vectors::are_recorded"])
        .envs([("TRAIL_EMU_NUMERICS", "device"), ("TRAIL_EMU_CHIP", "h100")])
        .envs([("TRAIL_TEST_DRIVER", "emulator")])
        .env("TRAIL_VECTORS", &file)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let emulator = Record::parse(&std::fs::read_to_string(&file).unwrap());
    std::fs::remove_file(&file).unwrap();
    let device = Record::parse(include_str!("../../vectors/h200.txt"));
    let pairs = emulator.0["tiles"].iter().zip(&device.0["tiles"]);
    assert_eq!(pairs.filter(|(emulator, device)| emulator != device).count(), 0);
    assert_eq!(emulator.0["tiles"].len(), TILES * 128);
}

/// The PTX manual's rules of NaN, infinities and zeros.
#[test]
fn of_nan_and_zeros_are_the_manuals() {
    let _session = trail_cuda_emulator::session();
    let emulator = Record::of_device(FEW);
    let of = |name: &str, a: f64, b: f64| {
        let at = |x: f64| SPECIAL.iter().position(|y| y.to_bits() == x.to_bits()).unwrap();
        emulator.0[name][at(a) * SPECIAL.len() + at(b)]
    };
    assert_eq!(of("cvt.rni.u64.f64", f64::NAN, 0.0), 1 << 63);
    assert_eq!(of("cvt.rpi.u64.f64", f64::NAN, 0.0), 1 << 63);
    assert_eq!(of("cvt.rzi.s32.f32", f64::NAN, 0.0), 0);
    assert_eq!(of("cvt.rni.u64.f64", f64::INFINITY, 0.0), u64::MAX);
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        let (least, greatest) = (of("min.f64", a, b), of("max.f64", a, b));
        assert_eq!((least, greatest), ((-0.0f64).to_bits(), 0.0f64.to_bits()));
    }
    assert_eq!(of("min.f64", f64::NAN, 1.0), 1.0f64.to_bits());
    assert_eq!(of("max.f64", 1.0, f64::NAN), 1.0f64.to_bits());
}

/// One bit elsewhere, or an error beyond the manual's, is a surprise.
#[test]
fn that_differ_are_named() {
    let _session = trail_cuda_emulator::session();
    let emulator = Record::of_device(FEW);
    let changed = |name: &str, at: usize, flip: u64| {
        let mut device = emulator.clone();
        device.0.get_mut(name).unwrap()[at] ^= flip;
        let found = device.surprises(&emulator);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        let operation = name.split(".worst").next().unwrap();
        assert!(found[0].starts_with(operation), "{found:?}");
    };
    EXACT.iter().for_each(|name| changed(name, 3, 1));
    changed("shuffles", 70, 1);
    APPROXIMATIONS.iter().for_each(|of| changed(&format!("{}.worst", of.name), 0, 1 << 20));
    // Two units of the last place of a sum near 16 x 1.
    changed("tiles", 31 * 128, 1 << 6);
}
