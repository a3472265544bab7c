//! Interprets the x86-64 instructions that assembled kernels consist of, so that every level is
//! tested on machines that lack it, and finds what hardware forgives: an access outside the
//! arguments' memory by a single byte, a register that the caller keeps and the kernel does not.
//!
//! Only instructions that emitters use are known; any other is a [`Fault`] that names it. What an
//! instruction does is taken from Intel's *Software Developer's Manual*, volume 2; floats follow
//! IEEE 754 with rounding to nearest even and, but for the bf16 products that say so, keep
//! denormals. The comparison with real hardware is a test of `codegen`.

mod integer;
mod memory;
mod operand;
mod tile;
mod vector;

#[cfg(test)]
mod tests;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

use memory::Memory;
pub use memory::{Argument, FIRST_ARGUMENT, addresses};

/// Where code lies.
pub const CODE: u64 = 0x40_0000;
/// The return address of the outermost call: no code is there.
const RETURN: u64 = 0xdead_0000;
/// Bytes of the stack.
const STACK: usize = 1 << 20;
/// Instructions of one call at most.
const LONGEST: u64 = 2_000_000_000;
/// What registers hold that are not arguments: as a float, not a number.
const POISON: u64 = 0xffff_dead_ffff_beef;

/// Registers that a callee keeps in the System V convention.
const KEPT: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];

/// Why interpretation stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An instruction that is not interpreted.
    #[error("{at:#x}: `{instruction}` is not interpreted")]
    Unknown {
        /// Offset in the code.
        at: u64,
        /// The instruction.
        instruction: String,
    },
    /// An access outside of all memory.
    #[error("{at:#x}: `{instruction}` {what} {bytes} bytes at {place}")]
    Memory {
        /// Offset in the code.
        at: u64,
        /// The instruction.
        instruction: String,
        /// Reads or writes.
        what: &'static str,
        /// Length of the access.
        bytes: usize,
        /// Where, in terms of the nearest argument.
        place: String,
    },
    /// An operand breaks a rule of its instruction.
    #[error("{at:#x}: `{instruction}`: {message}")]
    Operand {
        /// Offset in the code.
        at: u64,
        /// The instruction.
        instruction: String,
        /// Which rule.
        message: String,
    },
    /// The function returned with another stack pointer or without a register of the caller.
    #[error("{0} is not restored on return")]
    Convention(&'static str),
    /// The function does not end.
    #[error("more than {LONGEST} instructions")]
    Endless,
}

/// A fault without its place, which the loop adds.
#[derive(Debug)]
enum Stop {
    Unknown,
    Access { what: &'static str, address: u64, bytes: usize },
    Operand(String),
}

type Step = Result<(), Stop>;

/// Flags that integer instructions set.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    zero: bool,
    sign: bool,
    carry: bool,
    overflow: bool,
    parity: bool,
}

/// A tile's shape: rows and bytes of a row.
#[derive(Clone, Copy, Debug, Default)]
struct TileShape {
    rows: usize,
    row_bytes: usize,
}

/// Registers and memory of one call.
struct Processor<'a> {
    general: [u64; 16],
    vectors: [[u8; 64]; 32],
    masks: [u64; 8],
    flags: Flags,
    shapes: [TileShape; 8],
    tiles: Vec<[u8; 1024]>,
    /// Whether tiles are configured.
    has_tiles: bool,
    memory: Memory<'a>,
    next: u64,
}

/// Calls the function at `entry` of `code`, which takes pointers and counts and returns nothing.
/// Gives the number of instructions.
pub fn call<'a>(code: &'a [u8], entry: usize, arguments: Vec<Argument<'a>>) -> Result<u64, Fault> {
    let mut memory = Memory::default();
    memory.code(CODE, code);
    let mut words = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let word = memory.map(&words, argument);
        words.push(word);
    }
    let stack = memory.own("the stack", STACK);
    let mut processor = Processor {
        general: [POISON; 16],
        vectors: [[0xff; 64]; 32],
        masks: [POISON; 8],
        flags: Flags::default(),
        shapes: [TileShape::default(); 8],
        tiles: vec![[0xff; 1024]; 8],
        has_tiles: false,
        memory,
        next: CODE + entry as u64,
    };
    let registers =
        [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
    for (register, word) in registers.into_iter().zip(&words) {
        processor.general[register.number()] = *word;
    }
    // The stack pointer is 8 below a multiple of 16 on entry: the return address lies there.
    let on_stack = words.get(registers.len()..).unwrap_or_default();
    let top = stack + STACK as u64 - 4096;
    let pointer = top - 8;
    let place = |at: u64, word: u64, processor: &mut Processor<'_>| {
        let written = processor.memory.write(at, &word.to_le_bytes());
        debug_assert!(written.is_ok(), "the stack holds the arguments");
    };
    place(pointer, RETURN, &mut processor);
    for (index, word) in on_stack.iter().enumerate() {
        place(top + 8 * index as u64, *word, &mut processor);
    }
    processor.general[Register::RSP.number()] = pointer;
    let before = processor.general;
    let count = processor.run(code)?;
    if processor.general[Register::RSP.number()] != pointer + 8 {
        return Err(Fault::Convention("rsp"));
    }
    if KEPT.iter().any(|kept| processor.general[kept.number()] != before[kept.number()]) {
        return Err(Fault::Convention("a register of the caller"));
    }
    if processor.has_tiles {
        return Err(Fault::Convention("the tile configuration"));
    }
    Ok(count)
}

impl Processor<'_> {
    fn run(&mut self, code: &[u8]) -> Result<u64, Fault> {
        let mut known: Vec<Option<Instruction>> = vec![None; code.len()];
        let mut count = 0;
        while self.next != RETURN {
            let at = self.next.wrapping_sub(CODE);
            let Some(slot) = usize::try_from(at).ok().and_then(|at| known.get_mut(at)) else {
                let instruction = "a jump out of the code".to_owned();
                return Err(Fault::Unknown { at, instruction });
            };
            let instruction = *slot.get_or_insert_with(|| {
                let mut decoder =
                    Decoder::with_ip(64, &code[at as usize..], self.next, DecoderOptions::NONE);
                decoder.decode()
            });
            count += 1;
            if count > LONGEST {
                return Err(Fault::Endless);
            }
            self.next = instruction.next_ip();
            self.step(&instruction).map_err(|stop| self.fault(&instruction, at, stop))?;
        }
        Ok(count)
    }

    fn fault(&self, instruction: &Instruction, at: u64, stop: Stop) -> Fault {
        use iced_x86::Formatter;
        let mut text = String::new();
        iced_x86::IntelFormatter::new().format(instruction, &mut text);
        match stop {
            Stop::Unknown => Fault::Unknown { at, instruction: text },
            Stop::Operand(message) => Fault::Operand { at, instruction: text, message },
            Stop::Access { what, address, bytes } => {
                let place = self.memory.describe(address);
                Fault::Memory { at, instruction: text, what, bytes, place }
            }
        }
    }

    fn step(&mut self, instruction: &Instruction) -> Step {
        if instruction.flow_control() != FlowControl::Next {
            return self.flow(instruction);
        }
        match instruction.mnemonic() {
            Mnemonic::Nop
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetchw => Ok(()),
            Mnemonic::Ldtilecfg
            | Mnemonic::Tilerelease
            | Mnemonic::Tilezero
            | Mnemonic::Tileloadd
            | Mnemonic::Tileloaddt1
            | Mnemonic::Tilestored
            | Mnemonic::Tdpbssd
            | Mnemonic::Tdpbsud
            | Mnemonic::Tdpbusd
            | Mnemonic::Tdpbuud
            | Mnemonic::Tdpbf16ps => self.tile(instruction),
            _ if is_vector(instruction) => self.vector(instruction),
            _ => self.integer(instruction),
        }
    }
}

/// Whether an operand is a vector or a mask register.
fn is_vector(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Vzeroupper
        || (0..instruction.op_count()).any(|operand| {
            let register = instruction.op_register(operand);
            register.is_vector_register() || register.is_k()
        })
}
