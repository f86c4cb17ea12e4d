//! Authenticates a bundle: an ed25519 signature of its manifest, as made by src/streamfuse/bundle/signature.py.

use std::ffi::CStr;

use ed25519_dalek::{Signature, VerifyingKey};

use crate::error::{bad_argument, Failure};

pub const NAME: &str = "manifest.sig";
pub const BYTES: u64 = 64;

/// Prefix of the signed message, so that the signature is not valid for anything else.
const PURPOSE: &[u8] = b"streamfuse bundle manifest v1\n";

pub struct PublicKey(VerifyingKey);

/// Why a text is not a valid public key.
pub enum KeyFault {
    NotHexadecimal,
    Weak,
}

impl KeyFault {
    pub fn sentence(&self) -> &'static CStr {
        match self {
            KeyFault::NotHexadecimal => {
                c"the public key must be 64 hexadecimal digits, the line that `streamfuse bundle keygen` writes"
            }
            KeyFault::Weak => {
                c"the public key is no point of ed25519, or a weak one; make a pair with `streamfuse bundle keygen`"
            }
        }
    }
}

impl From<KeyFault> for Failure {
    fn from(fault: KeyFault) -> Failure {
        bad_argument(fault.sentence().to_string_lossy())
    }
}

impl PublicKey {
    /// Parses the line that `streamfuse bundle keygen` prints: 64 hexadecimal digits.
    pub fn parse(text: &[u8]) -> Result<PublicKey, KeyFault> {
        let bytes = bytes_of_hex(text.trim_ascii()).ok_or(KeyFault::NotHexadecimal)?;
        // Rejects other encodings of the same point, and keys of small order, for which nearly any signature is valid.
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| KeyFault::Weak)?;
        if key.is_weak() || key.to_edwards().compress().as_bytes() != &bytes {
            return Err(KeyFault::Weak);
        }
        Ok(PublicKey(key))
    }

    pub fn signed(&self, manifest: &[u8], signature: &[u8]) -> bool {
        let message = [PURPOSE, manifest].concat();
        Signature::from_slice(signature).is_ok_and(|signature| self.0.verify_strict(&message, &signature).is_ok())
    }
}

fn bytes_of_hex(digits: &[u8]) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = digits.try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? * 16 + value(pair[1])?) as u8;
    }
    Some(bytes)
}
