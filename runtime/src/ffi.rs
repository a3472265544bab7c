//! The C interface: the calls of `include/weir.h`, which documents them.
//!
//! Every pointer is checked for null, every error becomes a code and a message, and no panic
//! crosses the boundary. This is one of the few files that may use `unsafe`.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::engine::{Engine, Event, FinishReason, Request, RequestId, Usage};
use crate::forward::Forward;
use crate::{CompiledModel, Model, RuntimeError, RuntimeOptions, SamplingOptions, command};

const OK: c_int = 0;
/// The call is wrong: a null pointer, bad UTF-8, an option out of range.
const INVALID: c_int = 2;
/// A panic: our bug.
const INTERNAL: c_int = 3;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// A call that is wrong, or the library's own error.
enum Failure {
    Invalid(&'static str),
    Runtime(RuntimeError),
}

impl<E: Into<RuntimeError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Runtime(error.into())
    }
}

fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let (code, message) = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return OK,
        Ok(Err(Failure::Invalid(what))) => (INVALID, what.to_owned()),
        Ok(Err(Failure::Runtime(error))) => {
            (c_int::from(command::exit_code(&error)), error.to_string())
        }
        Err(_) => (INTERNAL, "internal error: a panic in the runtime".to_owned()),
    };
    // A message has no zero byte unless it quotes one.
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = message);
    code
}

/// # Safety
///
/// `pointer` is null or points to a value that nobody changes during `'a`.
unsafe fn reference<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Failure::Invalid(what))
}

/// # Safety
///
/// `pointer` is null or points to a value that nobody else uses during `'a`.
unsafe fn exclusive<'a, T>(pointer: *mut T, what: &'static str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(Failure::Invalid(what))
}

/// # Safety
///
/// `pointer` is null or points to `len` values that nobody changes during `'a`.
unsafe fn slice<'a, T>(
    pointer: *const T,
    len: usize,
    what: &'static str,
) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Failure::Invalid(what));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// # Safety
///
/// `pointer` is null or points to a zero-terminated string that nobody changes during `'a`.
unsafe fn c_string<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(Failure::Invalid(what));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

fn utf8(text: &CStr) -> Result<&str, Failure> {
    text.to_str().map_err(|_| Failure::Invalid("text is not UTF-8"))
}

/// `weir_options_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct COptions {
    slots: u32,
    threads: u32,
}

impl COptions {
    /// # Safety
    ///
    /// `options` is null or points to options.
    unsafe fn resolve(options: *const COptions) -> RuntimeOptions {
        // SAFETY: the caller's promise.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        RuntimeOptions {
            slots: (options.slots != 0).then_some(options.slots),
            threads: (options.threads != 0).then_some(options.threads as usize),
            ..RuntimeOptions::default()
        }
    }
}

/// `weir_request_t`.
#[repr(C)]
pub struct CRequest {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    top_k: u32,
    max_tokens: u32,
    seed: u64,
    choice: u32,
    ignore_eos: u32,
    stop: *const *const c_char,
    stop_count: usize,
}

/// `weir_event_t`.
#[repr(C)]
pub struct CEvent {
    request: u64,
    kind: u32,
    token: u32,
    text: *const c_char,
    text_bytes: usize,
    finish_reason: u32,
    prompt_tokens: u32,
    completion_tokens: u32,
    kv_rows_kept: u32,
    kv_rows_dropped: u32,
    reused_tokens: u32,
}

/// An event that waits to be fetched.
struct Queued {
    request: RequestId,
    kind: u32,
    token: u32,
    text: String,
    reason: Option<FinishReason>,
    usage: Usage,
}

const EVENT_NONE: u32 = 0;
const EVENT_TOKEN: u32 = 1;
const EVENT_FINISHED: u32 = 2;
const EVENT_FAILED: u32 = 3;

/// `weir_engine_t`.
pub struct CEngine {
    engine: Engine<Forward>,
    events: VecDeque<Queued>,
    /// Text of the event that was fetched last and a zero; the caller may read it until the next
    /// call.
    current: Vec<u8>,
}

/// The message of this thread's last failed call.
#[unsafe(no_mangle)]
pub extern "C" fn weir_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// Opens a compiled file.
///
/// # Safety
///
/// `path` is a zero-terminated string, `model` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_model_open(path: *const c_char, model: *mut *mut Model) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (path, model) =
            unsafe { (c_string(path, "path is null")?, exclusive(model, "model is null")?) };
        crate::machine::check_processor()?;
        let opened = Model::open(Path::new(OsStr::from_bytes(path.to_bytes())))?;
        *model = Box::into_raw(Box::new(opened));
        Ok(())
    })
}

/// Takes a model that was linked into this program.
///
/// # Safety
///
/// `slot` is the address of such a model's symbol, `model` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_model_linked(slot: *const c_void, model: *mut *mut Model) -> c_int {
    guarded(|| {
        crate::machine::check_processor()?;
        // SAFETY: the caller's promise.
        let (model, compiled) = unsafe {
            (exclusive(model, "model is null")?, CompiledModel::from_linked(slot.cast())?)
        };
        *model = Box::into_raw(Box::new(Model::new(compiled)?));
        Ok(())
    })
}

/// Frees a model. Engines made from it stay valid.
///
/// # Safety
///
/// `model` is null or came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_model_free(model: *mut Model) {
    if !model.is_null() {
        // SAFETY: the caller's promise.
        let model = unsafe { Box::from_raw(model) };
        guarded(|| {
            drop(model);
            Ok(())
        });
    }
}

/// Ids of a text.
///
/// # Safety
///
/// `model` came from this library, `text` is a zero-terminated string, `ids` has room for
/// `capacity` ids, `count` points to a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_model_encode(
    model: *const Model,
    text: *const c_char,
    ids: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, text, count) = unsafe {
            (
                reference(model, "model is null")?,
                c_string(text, "text is null")?,
                exclusive(count, "count is null")?,
            )
        };
        let encoded = model.encode(utf8(text)?)?;
        *count = encoded.len();
        if ids.is_null() || capacity < encoded.len() {
            // A first call may only ask for the number.
            return if capacity == 0 {
                Ok(())
            } else {
                Err(Failure::Invalid("ids has too little room"))
            };
        }
        // SAFETY: the caller promises room for `capacity` ids, which is enough.
        unsafe { std::ptr::copy_nonoverlapping(encoded.as_ptr(), ids, encoded.len()) };
        Ok(())
    })
}

/// Bytes that an engine can use at most.
///
/// # Safety
///
/// `model` came from this library, `options` is null or points to options, `bytes` to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_model_memory_ceiling(
    model: *const Model,
    options: *const COptions,
    bytes: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, options, bytes) = unsafe {
            (
                reference(model, "model is null")?,
                COptions::resolve(options),
                exclusive(bytes, "bytes is null")?,
            )
        };
        *bytes = model.memory_ceiling(&options)?.total();
        Ok(())
    })
}

/// Fills a request with the model's own defaults.
///
/// # Safety
///
/// `model` came from this library, `request` points to room for a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_request_defaults(
    model: *const Model,
    request: *mut CRequest,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let model = unsafe { reference(model, "model is null")? };
        if request.is_null() {
            return Err(Failure::Invalid("request is null"));
        }
        let own = model.sampling_defaults();
        let defaults = CRequest {
            temperature: own.temperature,
            top_p: own.top_p,
            min_p: own.min_p,
            repetition_penalty: own.repetition_penalty,
            presence_penalty: own.presence_penalty,
            frequency_penalty: own.frequency_penalty,
            top_k: own.top_k,
            max_tokens: 0,
            seed: own.seed,
            choice: 0,
            ignore_eos: 0,
            stop: std::ptr::null(),
            stop_count: 0,
        };
        // SAFETY: the caller promises room, which may be uninitialised.
        unsafe { request.write(defaults) };
        Ok(())
    })
}

/// Makes an engine.
///
/// # Safety
///
/// `model` came from this library, `options` is null or points to options, `engine` points to room
/// for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_engine_new(
    model: *const Model,
    options: *const COptions,
    engine: *mut *mut CEngine,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, options, engine) = unsafe {
            (
                reference(model, "model is null")?,
                COptions::resolve(options),
                exclusive(engine, "engine is null")?,
            )
        };
        model.need_text()?;
        let made =
            CEngine { engine: model.engine(&options)?, events: VecDeque::new(), current: vec![0] };
        *engine = Box::into_raw(Box::new(made));
        Ok(())
    })
}

/// Frees an engine and ends its threads.
///
/// # Safety
///
/// `engine` is null or came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_engine_free(engine: *mut CEngine) {
    if !engine.is_null() {
        // SAFETY: the caller's promise.
        let engine = unsafe { Box::from_raw(engine) };
        guarded(|| {
            drop(engine);
            Ok(())
        });
    }
}

/// Queues a request.
///
/// # Safety
///
/// `engine` came from this library and no other thread uses it; `prompt` has `prompt_tokens` ids,
/// `request` is null or points to a request whose strings are zero-terminated, `id` points to a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_engine_submit(
    engine: *mut CEngine,
    prompt: *const u32,
    prompt_tokens: usize,
    request: *const CRequest,
    id: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (engine, id) =
            unsafe { (exclusive(engine, "engine is null")?, exclusive(id, "id is null")?) };
        // Before so many are read.
        engine.engine.rules().check_length(prompt_tokens)?;
        // SAFETY: the caller's promise.
        let prompt = unsafe { slice(prompt, prompt_tokens, "prompt is null")? };
        let mut wanted = Request { prompt: prompt.to_vec(), ..Request::default() };
        // SAFETY: the caller's promise.
        if let Some(request) = unsafe { request.as_ref() } {
            // SAFETY: the caller's promise.
            let stops = unsafe { slice(request.stop, request.stop_count, "stop is null")? };
            for stop in stops {
                // SAFETY: the caller's promise.
                let stop = unsafe { c_string(*stop, "a stop string is null")? };
                wanted.stop.push(utf8(stop)?.to_owned());
            }
            wanted.max_tokens = (request.max_tokens != 0).then_some(request.max_tokens);
            wanted.choice = request.choice;
            wanted.ignore_eos = request.ignore_eos != 0;
            wanted.sampling = SamplingOptions {
                temperature: request.temperature,
                top_k: request.top_k,
                top_p: request.top_p,
                min_p: request.min_p,
                repetition_penalty: request.repetition_penalty,
                presence_penalty: request.presence_penalty,
                frequency_penalty: request.frequency_penalty,
                seed: request.seed,
                ..SamplingOptions::default()
            };
        }
        *id = engine.engine.submit(wanted)?.number();
        Ok(())
    })
}

/// Ends a request early.
///
/// # Safety
///
/// `engine` came from this library and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_engine_cancel(engine: *mut CEngine, id: u64) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let engine = unsafe { exclusive(engine, "engine is null")? };
        engine.engine.cancel(RequestId::from_number(id));
        Ok(())
    })
}

/// Fetches the next event, running steps until there is one.
///
/// # Safety
///
/// `engine` came from this library and no other thread uses it; `event` points to room for an
/// event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_engine_next(engine: *mut CEngine, event: *mut CEvent) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let engine = unsafe { exclusive(engine, "engine is null")? };
        if event.is_null() {
            return Err(Failure::Invalid("event is null"));
        }
        let next = engine.next();
        // SAFETY: the caller promises room, which may be uninitialised.
        unsafe { event.write(next) };
        Ok(())
    })
}

impl CEngine {
    fn next(&mut self) -> CEvent {
        while self.events.is_empty() && !self.engine.is_idle() {
            let events = &mut self.events;
            self.engine.step(|request, event| {
                let queued = match event {
                    // Engines are made of models that write text.
                    Event::Embedding { .. } => return,
                    Event::Token { token, text, .. } => Queued {
                        request,
                        kind: EVENT_TOKEN,
                        token,
                        text: text.to_owned(),
                        reason: None,
                        usage: Usage::default(),
                    },
                    Event::Finished { text, reason, usage, .. } => Queued {
                        request,
                        kind: EVENT_FINISHED,
                        token: 0,
                        text: text.to_owned(),
                        reason: Some(reason),
                        usage,
                    },
                    Event::Failed(fault) => Queued {
                        request,
                        kind: EVENT_FAILED,
                        token: 0,
                        text: fault.to_string(),
                        reason: None,
                        usage: Usage::default(),
                    },
                };
                events.push_back(queued);
            });
        }
        let Some(queued) = self.events.pop_front() else {
            self.current = vec![0];
            return self.event(0, 0);
        };
        let text_bytes = queued.text.len();
        // A generated zero byte ends the C string early; `text_bytes` says how long it is.
        self.current = queued.text.into_bytes();
        self.current.push(0);
        let Usage {
            prompt_tokens,
            completion_tokens,
            reused_tokens,
            kv_rows_kept,
            kv_rows_dropped,
            // Requests from here ask for the exact history, and nothing is guessed ahead.
            history: _,
            drafted_tokens: _,
            accepted_tokens: _,
        } = queued.usage;
        CEvent {
            kind: queued.kind,
            token: queued.token,
            finish_reason: match queued.reason {
                None => 0,
                Some(FinishReason::Stop) => 1,
                Some(FinishReason::Length) => 2,
                Some(FinishReason::Cancelled) => 3,
            },
            prompt_tokens,
            completion_tokens,
            kv_rows_kept,
            kv_rows_dropped,
            reused_tokens,
            ..self.event(queued.request.number(), text_bytes)
        }
    }

    fn event(&self, request: u64, text_bytes: usize) -> CEvent {
        CEvent {
            request,
            kind: EVENT_NONE,
            token: 0,
            text: self.current.as_ptr().cast(),
            text_bytes,
            finish_reason: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            kv_rows_kept: 0,
            kv_rows_dropped: 0,
            reused_tokens: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_calls_are_codes_and_messages() {
        let mut model = std::ptr::null_mut();
        // SAFETY: null pointers are what is being tested.
        unsafe {
            assert_eq!(weir_model_open(std::ptr::null(), &raw mut model), INVALID);
            assert_eq!(CStr::from_ptr(weir_last_error()), c"path is null");
            assert_eq!(weir_model_open(c"/nothing/here".as_ptr(), &raw mut model), 1);
            let message = CStr::from_ptr(weir_last_error()).to_str().unwrap();
            assert!(message.contains("/nothing/here"), "{message}");
            assert_eq!(weir_engine_next(std::ptr::null_mut(), std::ptr::null_mut()), INVALID);
            assert_eq!(weir_model_linked(std::ptr::null(), &raw mut model), 1);
            weir_model_free(std::ptr::null_mut());
            weir_engine_free(std::ptr::null_mut());
        }
        assert!(model.is_null());
    }

    #[test]
    fn a_panic_stays_inside() {
        assert_eq!(guarded(|| panic!("seen only here")), INTERNAL);
    }
}
