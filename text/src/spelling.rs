//! How the words of a vocabulary spell the bytes of a text.

/// A token as the vocabulary writes it.
pub enum Word {
    Plain(String),
    Added(String), // a text that the vocabulary was extended with
    Control(String),
}

/// How the words of a vocabulary spell bytes.
#[derive(Clone, Copy)]
pub enum Spelling {
    /// A character for each byte, as GPT-2 has it.
    ByteLevel,
    /// Text, with a mark for a space; `<0x0A>` is a byte if `bytes`.
    Text { space: Option<char>, bytes: bool },
}

impl Spelling {
    /// The bytes of a word.
    pub fn bytes(self, word: &str) -> Vec<u8> {
        match self {
            Spelling::ByteLevel => {
                word.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| word.as_bytes().to_owned())
            }
            Spelling::Text { space, bytes } => {
                let code = word.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match code.filter(|code| bytes && code.len() == 2).and_then(|code| u8::from_str_radix(code, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => space.map_or_else(|| word.to_owned(), |mark| word.replace(mark, " ")).into_bytes(),
                }
            }
        }
    }
}

/// The byte that a character of a byte-level vocabulary is: printable ones of Latin-1 are themselves, the others follow
/// from 256 on in the order of bytes.
fn byte_of(letter: char) -> Option<u8> {
    let is_own = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(letter) {
        Ok(byte) if is_own(byte) => Some(byte),
        Ok(_) => None,
        Err(_) => (0..=255).filter(|&byte| !is_own(byte)).nth((letter as usize).checked_sub(256)?),
    }
}
