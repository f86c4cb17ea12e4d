//! How models write calls and thoughts, by the chat templates that they were published with.

/// How the calls of a model are written: between two marks, one or several.
pub struct Family {
    pub name: &'static str,
    /// What its chat templates spell.
    spelt: &'static str,
    pub open: &'static str,
    /// Empty: a call ends with the answer.
    pub close: &'static str,
    pub form: Form,
}

/// What stands between the marks.
#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    /// {"name": ..., "arguments": {...}}, one or a list. `arguments` is the name that the model writes.
    Json { arguments: &'static str, is_list: bool },
    /// The same without marks: the whole answer is a call.
    JsonAlone,
    /// call:name{key:value}, with texts between `quote`s.
    Braces { quote: &'static str },
    /// name(key=value), one or a list, as in Python.
    Python,
    /// <function=name><parameter=key>value</parameter></function>
    Xml,
}

const HERMES: Form = Form::Json { arguments: "arguments", is_list: false };

/// The first whose mark a template spells. Several generations of a family have the marks of an older one too.
static FAMILIES: [Family; 9] = [
    // Qwen3-Coder, Qwen3.5
    Family { name: "xml", spelt: "<function=", open: "<tool_call>", close: "</tool_call>", form: Form::Xml },
    // Hermes, Qwen2.5, Qwen3, SmolLM3
    Family { name: "hermes", spelt: "<tool_call>", open: "<tool_call>", close: "</tool_call>", form: HERMES },
    Family {
        name: "lfm2",
        spelt: "<|tool_call_start|>",
        open: "<|tool_call_start|>",
        close: "<|tool_call_end|>",
        form: Form::Python,
    },
    Family {
        name: "phi4",
        spelt: "<|/tool_call|>",
        open: "<|tool_call|>",
        close: "<|/tool_call|>",
        form: Form::Json { arguments: "arguments", is_list: true },
    },
    Family {
        name: "gemma4",
        spelt: "<tool_call|>",
        open: "<|tool_call>",
        close: "<tool_call|>",
        form: Form::Braces { quote: "<|\"|>" },
    },
    Family {
        name: "functiongemma",
        spelt: "<start_function_call>",
        open: "<start_function_call>",
        close: "<end_function_call>",
        form: Form::Braces { quote: "<escape>" },
    },
    Family {
        name: "mistral",
        spelt: "[TOOL_CALLS]",
        open: "[TOOL_CALLS]",
        close: "",
        form: Form::Json { arguments: "arguments", is_list: true },
    },
    Family { name: "llama3", spelt: "ipython", open: "<|python_tag|>", close: "", form: Form::JsonAlone },
    // Gemma 3: its template has no tools, and the model was taught this form.
    Family { name: "gemma3", spelt: "<start_of_turn>", open: "```tool_code\n", close: "```", form: Form::Python },
];

/// What a model writes where its template says nothing of tools, and the tools are in the system message.
pub static PLAIN: Family =
    Family { name: "hermes", spelt: "", open: "<tool_call>", close: "</tool_call>", form: HERMES };

/// Of a chat template.
pub fn family(template: &str) -> &'static Family {
    FAMILIES.iter().find(|family| template.contains(family.spelt)).unwrap_or(&PLAIN)
}

/// Whether a chat template writes tools.
pub fn has_tools(template: &str) -> bool {
    template.contains("tools")
}

/// The marks around thoughts.
pub type Thoughts = (&'static str, &'static str);

const THOUGHTS: [Thoughts; 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// Those that a chat template spells.
pub fn thoughts(template: &str) -> Vec<Thoughts> {
    THOUGHTS.into_iter().filter(|(_, close)| template.contains(close)).collect()
}
