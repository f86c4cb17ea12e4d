//! Bundles and text, with the C interface of `streamfuse_bundle.h`.
//!
//! `border` is the C interface and the only module that dereferences pointers from C; all others are safe Rust and do
//! not depend on it. tests/text compares ids and chats with transformers, and manifests with their schema.
#![deny(unsafe_code)]

mod border;
mod bundle;
mod chat;
mod constraint;
mod control_tokens;
mod error;
mod files;
mod jinja;
mod json;
mod language;
mod limit;
mod manifest;
mod message;
mod npz;
mod panics;
mod schema;
mod signature;
mod spelling;
mod stack;
mod stream;
mod tables;
mod template;
mod text;
mod tokenizer;
mod tools;
mod watch;
