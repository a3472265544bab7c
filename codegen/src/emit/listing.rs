//! Disassembly of a finished code region, function by function (`--emit asm`).

use std::fmt::Write as _;

use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter, OpKind, SymbolResolver,
    SymbolResult,
};

use crate::image::CodeImage;

/// Names call targets inside the region.
struct Names(Vec<(u64, String)>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        // Displacements of operands in memory are small numbers too, but no places in the code.
        if instruction.op0_kind() != OpKind::NearBranch64 {
            return None;
        }
        let index = self.0.binary_search_by_key(&address, |entry| entry.0).ok()?;
        Some(SymbolResult::with_str(address, &self.0[index].1))
    }
}

/// Assembly text of the function called `name`, or nothing if the image has none of that name.
pub fn disassemble(image: &CodeImage, name: &str) -> Option<String> {
    let symbol = image.symbols.iter().find(|symbol| symbol.name == name)?;
    let bytes = &image.bytes[symbol.offset as usize..(symbol.offset + symbol.bytes) as usize];
    let names = image.symbols.iter().map(|s| (s.offset, s.name.clone())).collect();
    let mut formatter = IntelFormatter::with_options(Some(Box::new(Names(names))), None);
    let mut text = format!("{name}:\n");
    let mut line = String::new();
    for instruction in Decoder::with_ip(64, bytes, symbol.offset, DecoderOptions::NONE).iter() {
        line.clear();
        formatter.format(&instruction, &mut line);
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {:8x}  {line}", instruction.ip());
    }
    Some(text)
}
