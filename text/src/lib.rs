//! A bundle, and the text around its tokens, behind the C interface of `streamfuse_bundle.h`.
//!
//! `border` is the interface and the only place that dereferences what C hands over; the others are safe Rust and know
//! nothing of it. What they check and write is what Python's `src/streamfuse/bundle`, `runtime/tensors.py`,
//! `runtime/text.py` and `text_io.py` check and write; tests/unit/test_bundle_library.py holds the two together.
#![deny(unsafe_code)]

mod border;
mod bundle;
mod chat;
mod control_tokens;
mod error;
mod files;
mod jinja;
mod json;
mod manifest;
mod panics;
mod schema;
mod signature;
mod stream;
mod tables;
mod template;
mod text;
mod tokenizer;
