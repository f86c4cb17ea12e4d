//! A bundle, and the text around its tokens, behind the C interface of `streamfuse_bundle.h`.
//!
//! `border` is the interface and the only place that dereferences what C hands over; the others are safe Rust and know
//! nothing of it. tests/text hold ids and chats to transformers, and manifests to their schema.
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
mod manifest;
mod message;
mod panics;
mod schema;
mod signature;
mod stack;
mod stream;
mod tables;
mod template;
mod text;
mod tokenizer;
mod tools;
