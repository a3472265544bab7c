//! Collects functions and lays them out as one position-independent run of bytes.
//!
//! Invariants: a function is declared before anything calls it and defined exactly once; the bytes
//! depend only on declarations and definitions, in order; every relocation is a PC-relative
//! reference inside the run and is resolved here. Anything else is an error, for the result may
//! have no undefined symbol and needs no loader.

use std::collections::BTreeMap;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::{
    AbiParam, ExternalName, Function, Signature, Type, UserFuncName, types,
};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use iced_x86::code_asm::CodeAssembler;

use super::Body;
use crate::image::{CodeImage, Symbol};

/// Alignment of every function: a cache line, so that the loop alignment of assembled kernels holds.
const FUNCTION_ALIGN: usize = 64;

/// Why code could not be emitted. All of these are our own mistakes.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The target or one of its settings is not known to Cranelift.
    #[error("code generator settings: {0}")]
    Settings(String),
    /// Two functions have one name.
    #[error("function `{0}` is declared twice")]
    Redeclared(String),
    /// A function has two bodies.
    #[error("function `{0}` is defined twice")]
    Redefined(String),
    /// A function has no body.
    #[error("function `{0}` is declared but not defined")]
    Undefined(String),
    /// Cranelift refused the body.
    #[error("function `{function}`: {message}")]
    Compile {
        /// The function.
        function: String,
        /// Cranelift's message.
        message: String,
    },
    /// The assembler refused an instruction.
    #[error("function `{function}`: assembler: {message}")]
    Assemble {
        /// The function.
        function: String,
        /// The assembler's message.
        message: String,
    },
    /// The body refers to something outside the code region.
    #[error("function `{function}` at {offset:#x}: reference that does not stay inside: {kind}")]
    Relocation {
        /// The function.
        function: String,
        /// Offset in the function.
        offset: u32,
        /// Kind and target.
        kind: String,
    },
}

/// A declared function of an [`Assembly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuncId(pub(super) u32);

/// A call from one function to another, not yet resolved.
struct Call {
    at: u32,
    target: FuncId,
    addend: i64,
}

struct Code {
    bytes: Vec<u8>,
    calls: Vec<Call>,
    clif: Option<String>,
}

pub(super) struct Declaration {
    pub(super) name: String,
    pub(super) signature: Signature,
}

/// Functions on their way to one code region.
pub struct Assembly {
    isa: OwnedTargetIsa,
    declarations: Vec<Declaration>,
    by_name: BTreeMap<String, FuncId>,
    code: Vec<Option<Code>>,
    keep_clif: bool,
    context: Context,
    builder_context: FunctionBuilderContext,
}

/// A C function's signature.
pub fn signature(params: &[Type], returns: &[Type]) -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.extend(params.iter().map(|ty| AbiParam::new(*ty)));
    signature.returns.extend(returns.iter().map(|ty| AbiParam::new(*ty)));
    signature
}

/// Signature of [`weir_abi::Segment`]: context, thread, threads.
pub fn segment_signature() -> Signature {
    signature(&[types::I64, types::I32, types::I32], &[])
}

/// x86-64-v3, the least that any level needs: wider instructions come from assembled functions, so
/// that Cranelift's code is the same on every machine and level.
fn target() -> Result<OwnedTargetIsa, EmitError> {
    let bad = |error: &dyn std::fmt::Display| EmitError::Settings(error.to_string());
    let mut shared = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("is_pic", "false"),
        ("unwind_info", "false"),
        ("preserve_frame_pointers", "true"),
        ("enable_probestack", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
    ] {
        shared.set(name, value).map_err(|e| bad(&e))?;
    }
    let mut builder =
        cranelift_codegen::isa::lookup_by_name("x86_64-unknown-linux").map_err(|e| bad(&e))?;
    for feature in [
        "has_sse3",
        "has_ssse3",
        "has_sse41",
        "has_sse42",
        "has_avx",
        "has_avx2",
        "has_fma",
        "has_popcnt",
        "has_bmi1",
        "has_bmi2",
        "has_lzcnt",
    ] {
        builder.enable(feature).map_err(|e| bad(&e))?;
    }
    builder.finish(settings::Flags::new(shared)).map_err(|e| bad(&e))
}

impl Assembly {
    /// An empty assembly for x86-64-v3.
    pub fn new() -> Result<Self, EmitError> {
        Ok(Self {
            isa: target()?,
            declarations: Vec::new(),
            by_name: BTreeMap::new(),
            code: Vec::new(),
            keep_clif: false,
            context: Context::new(),
            builder_context: FunctionBuilderContext::new(),
        })
    }

    /// Keeps the CLIF text of functions defined from now on, for [`Assembly::clif`].
    pub fn keep_clif(&mut self) {
        self.keep_clif = true;
    }

    /// Names a function, so that bodies can call it.
    pub fn declare(&mut self, name: &str, signature: Signature) -> Result<FuncId, EmitError> {
        let id = FuncId(self.declarations.len() as u32);
        if self.by_name.insert(name.to_owned(), id).is_some() {
            return Err(EmitError::Redeclared(name.to_owned()));
        }
        self.declarations.push(Declaration { name: name.to_owned(), signature });
        self.code.push(None);
        Ok(id)
    }

    /// The function of this name, if it is declared: kernels that several callers share are
    /// declared by the first.
    pub fn find(&self, name: &str) -> Option<FuncId> {
        self.by_name.get(name).copied()
    }

    /// Name of a declared function.
    pub fn name(&self, id: FuncId) -> &str {
        &self.declarations[id.0 as usize].name
    }

    /// Gives a function the body that `build` writes. `build` ends every path with a return.
    pub fn define(
        &mut self,
        id: FuncId,
        build: impl FnOnce(&mut Body<'_>),
    ) -> Result<(), EmitError> {
        let declaration = &self.declarations[id.0 as usize];
        let name = declaration.name.clone();
        self.context.clear();
        self.context.func = Function::with_name_signature(
            UserFuncName::user(0, id.0),
            declaration.signature.clone(),
        );
        let mut builder = FunctionBuilder::new(&mut self.context.func, &mut self.builder_context);
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        let mut body = Body::new(builder, entry, &self.declarations);
        build(&mut body);
        body.finish(self.isa.frontend_config());
        let clif = self.keep_clif.then(|| self.context.func.display().to_string());
        let compiled =
            self.context.compile(&*self.isa, &mut Default::default()).map_err(|error| {
                EmitError::Compile {
                    function: name.clone(),
                    message: format!("{:?}\n{}", error.inner, error.func.display()),
                }
            })?;
        let bytes = compiled.code_buffer().to_vec();
        let relocations = compiled.buffer.relocs().to_vec();
        let mut calls = Vec::new();
        for relocation in relocations {
            let target = match (&relocation.kind, &relocation.target) {
                (
                    Reloc::X86PCRel4 | Reloc::X86CallPCRel4,
                    FinalizedRelocTarget::ExternalName(ExternalName::User(reference)),
                ) => FuncId(self.context.func.params.user_named_funcs()[*reference].index),
                (kind, target) => {
                    return Err(EmitError::Relocation {
                        function: name,
                        offset: relocation.offset,
                        kind: format!("{kind:?} {target:?}"),
                    });
                }
            };
            calls.push(Call { at: relocation.offset, target, addend: relocation.addend });
        }
        self.put(id, Code { bytes, calls, clif })
    }

    /// Gives a function the instructions that `build` assembles. They hold no reference outside
    /// themselves; the function follows the System V convention.
    pub fn assemble(
        &mut self,
        id: FuncId,
        build: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
    ) -> Result<(), EmitError> {
        let name = self.name(id).to_owned();
        let bytes = CodeAssembler::new(64)
            .and_then(|mut code| {
                build(&mut code)?;
                code.assemble(0)
            })
            .map_err(|error| EmitError::Assemble { function: name, message: error.to_string() })?;
        self.put(id, Code { bytes, calls: Vec::new(), clif: None })
    }

    fn put(&mut self, id: FuncId, code: Code) -> Result<(), EmitError> {
        let place = &mut self.code[id.0 as usize];
        if place.is_some() {
            return Err(EmitError::Redefined(self.declarations[id.0 as usize].name.clone()));
        }
        *place = Some(code);
        Ok(())
    }

    /// CLIF text of a function, if it was kept and the function is not assembled directly.
    pub fn clif(&self, id: FuncId) -> Option<&str> {
        self.code[id.0 as usize].as_ref()?.clif.as_deref()
    }

    /// All functions in order of declaration.
    pub fn functions(&self) -> impl Iterator<Item = FuncId> + use<> {
        (0..self.declarations.len() as u32).map(FuncId)
    }

    /// Lays all functions out in order of declaration and resolves their calls.
    pub fn finish(self) -> Result<CodeImage, EmitError> {
        let mut image = CodeImage::default();
        let mut calls = Vec::new();
        for (declaration, code) in self.declarations.iter().zip(self.code) {
            let code = code.ok_or_else(|| EmitError::Undefined(declaration.name.clone()))?;
            // Padding is `int3`, so that a jump that goes astray stops.
            image.bytes.resize(image.bytes.len().next_multiple_of(FUNCTION_ALIGN), 0xcc);
            image.symbols.push(Symbol {
                name: declaration.name.clone(),
                offset: image.bytes.len() as u64,
                bytes: code.bytes.len() as u64,
            });
            image.bytes.extend_from_slice(&code.bytes);
            calls.push(code.calls);
        }
        for (index, calls) in calls.into_iter().enumerate() {
            let base = image.symbols[index].offset;
            for call in calls {
                let at = base + u64::from(call.at);
                let target = image.symbols[call.target.0 as usize].offset as i64;
                let displacement = target + call.addend - at as i64;
                let field = i32::try_from(displacement).map_err(|_| EmitError::Relocation {
                    function: image.symbols[index].name.clone(),
                    offset: call.at,
                    kind: "call over more than 2 GB".to_owned(),
                })?;
                image.bytes[at as usize..][..4].copy_from_slice(&field.to_le_bytes());
            }
        }
        Ok(image)
    }
}

impl Body<'_> {
    /// The name under which Cranelift knows a declared function.
    pub(super) fn import(&mut self, id: FuncId) -> cranelift_codegen::ir::FuncRef {
        if let Some(known) = self.imported.get(&id) {
            return *known;
        }
        let declaration = &self.declarations[id.0 as usize];
        let signature = self.builder.import_signature(declaration.signature.clone());
        let name = self.builder.func.declare_imported_user_function(
            cranelift_codegen::ir::UserExternalName { namespace: 0, index: id.0 },
        );
        let function = self.builder.import_function(cranelift_codegen::ir::ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        });
        self.imported.insert(id, function);
        function
    }
}
