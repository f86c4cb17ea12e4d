#include "sequence.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "delegates.h"
#include "error.h"
#include "ops/real_rows.h"
#include "ops/team.h"

namespace streamfuse {
namespace {

[[noreturn]] void bad_argument(const std::string& sentence) { throw Failure(SF_BAD_ARGUMENT, sentence); }

void check_rows(const Shapes& shapes, const Signature& method, int n, const int64_t* ids, const int64_t* positions,
                const uint8_t* ancestors) {
  if (n < 1 || n > method.rows)
    bad_argument("method " + method.name + " takes 1 to " + std::to_string(method.rows) + " rows, not " +
                 std::to_string(n));
  if (ids == nullptr || positions == nullptr || ancestors == nullptr) bad_argument("an input of run is a null pointer");
  for (int i = 0; i < n; ++i) {
    const auto row_text = [i] { return " in row " + std::to_string(i); };
    if (ids[i] < 0 || (shapes.vocab_size > 0 && ids[i] >= shapes.vocab_size))
      bad_argument("token " + std::to_string(ids[i]) + row_text() + " lies outside the vocabulary of " +
                   std::to_string(shapes.vocab_size));
    if (positions[i] < 0 || positions[i] >= shapes.capacity)
      bad_argument("position " + std::to_string(positions[i]) + row_text() + " lies outside the capacity of " +
                   std::to_string(shapes.capacity));
    const uint8_t* row = ancestors + static_cast<size_t>(i) * n;
    if (row[i] == 0) bad_argument("row " + std::to_string(i) + " is not its own ancestor");
    for (int j = i + 1; j < n; ++j)
      if (row[j] != 0)
        bad_argument("row " + std::to_string(i) + " has the later row " + std::to_string(j) + " as an ancestor");
  }
}

void fill_inputs(const GraphMethod& method, int n, const int64_t* ids, const int64_t* positions,
                 const uint8_t* ancestors, int64_t length, bool want_logits) {
  const int64_t rows = method.signature().rows;
  std::fill(std::copy_n(ids, n, method.input<int64_t>(0)), method.input<int64_t>(0) + rows, 0);
  std::fill(std::copy_n(positions, n, method.input<int64_t>(1)), method.input<int64_t>(1) + rows, 0);
  bool* const visible = method.input<bool>(2);
  std::fill_n(visible, rows * rows, false);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) visible[i * rows + j] = ancestors[static_cast<size_t>(i) * n + j] != 0;
  *method.input<int64_t>(3) = length;
  *method.input<bool>(4) = want_logits;
}

}  // namespace

Sequence::Sequence(std::shared_ptr<const Program> program, const sf_watch* watch)
    : program_(std::move(program)), arena_(program_->arena_bytes()) {
  const Shapes& shapes = program_->shapes();
  int64_t most_rows = 0;
  for (const auto& [name, signature] : program_->signatures()) most_rows = std::max(most_rows, signature.rows);
  kept_.reserve(static_cast<size_t>(most_rows));
  places_.reserve(static_cast<size_t>(most_rows));
  if (program_->signatures().count(kStreams) > 0) streams_arena_ = Block(program_->arena_bytes());
  for (size_t i = 0; i < 2 * static_cast<size_t>(shapes.layers); ++i)
    caches_.emplace_back(static_cast<size_t>(shapes.cache_bytes(i)));
  for (int64_t i = 0; i < shapes.num_states; ++i) states_.emplace_back(static_cast<size_t>(shapes.state_bytes()));
  methods_ = load_methods(nullptr, watch);
}

Sequence::~Sequence() { free_methods(); }

void Sequence::free_methods() {
  const VendorOutput output(program_->has_vendors_delegate());
  methods_.clear();
}

Sequence::Methods Sequence::load_methods(Tracer* tracer, const sf_watch* watch) const {
  Methods methods;
  for (const auto& [name, signature] : program_->signatures()) {
    if (watch != nullptr && watch->step(watch->context, methods.size(), program_->signatures().size()) != 0)
      throw Failure(SF_CANCELLED, "loading was cancelled");
    methods[name] = std::make_unique<GraphMethod>(
        *program_, signature, signature.is_streams() ? streams_arena_ : arena_, caches_, states_, tracer);
  }
  return methods;
}

void Sequence::run(const std::string& method, int n, const int64_t* ids, const int64_t* positions,
                   const uint8_t* ancestors, bool want_logits) {
  program_->check_process();
  const Signature& signature = program_->signature(method);
  if (signature.is_streams()) bad_argument("method streams is called by sf_engine_streams");
  GraphMethod& target = *methods_.at(method);
  check_rows(program_->shapes(), signature, n, ids, positions, ancestors);
  can_commit_ = false;
  ran_ = streamed_ = nullptr;
  const TeamPass pass(program_->team_threads());
  fill_inputs(target, n, ids, positions, ancestors, length_, want_logits);
  {
    // Streams are computed next to kept rows, which may include padding, so such methods compute all rows.
    const RealRowsScope scope(signature.carrying == 0 ? signature.rows : 0, n);
    target.execute();
  }
  read_survivors(target, n);
  ran_ = streamed_ = &target;
  ran_at_length_ = length_;
  can_commit_ = true;
}

void Sequence::read_survivors(const GraphMethod& method, int n) {
  const Signature& signature = method.signature();
  kept_.clear();
  if (!signature.kept) {
    for (int i = 0; i < n; ++i) kept_.push_back(i);
    return;
  }
  const int64_t* rows = method.output<int64_t>(*signature.kept);
  for (int64_t i = 0; i < signature.keep && rows[i] >= 0 && rows[i] < n; ++i) kept_.push_back(rows[i]);
  if (kept_.empty() || kept_[0] != 0) throw Failure(SF_EXECUTION, "method " + signature.name + " pruned its root");
}

void Sequence::streams(int index, int64_t next_token) {
  program_->check_process();
  const auto found = methods_.find(kStreams);
  if (found == methods_.end()) bad_argument("this program has no method streams");
  if (ran_ == nullptr) throw Failure(SF_NOT_KEPT, "streams need a run first");
  const Signature& signature = ran_->signature();
  if (!signature.hidden) bad_argument("method " + signature.name + " leaves no hidden state for streams");
  if (index < 0 || index >= static_cast<int>(kept_.size()))
    bad_argument("the last run has " + std::to_string(kept_.size()) + " survivors, not one with the number " +
                 std::to_string(index));
  if (length_ < 1) bad_argument("streams need the node's keys and values: commit first");
  GraphMethod& method = *found->second;
  const size_t hidden = static_cast<size_t>(program_->shapes().hidden_size);
  std::memcpy(method.input<float>(0), ran_->output<float>(*signature.hidden) + static_cast<size_t>(index) * hidden,
              hidden * sizeof(float));
  *method.input<int64_t>(1) = length_ - 1;
  *method.input<int64_t>(2) = length_;
  if (method.signature().takes_next_token) {
    if (next_token < 0 || next_token >= program_->shapes().vocab_size)
      bad_argument("token " + std::to_string(next_token) + " is none of the model's");
    *method.input<int64_t>(3) = next_token;
  }
  const TeamPass pass(program_->team_threads());
  streamed_ = nullptr;
  method.execute();
  streamed_ = &method;
}

sf_results Sequence::results() const {
  if (ran_ == nullptr) throw Failure(SF_NOT_KEPT, "there is no run to read from");
  const int64_t real = static_cast<int64_t>(kept_.size());
  const auto of = [](const GraphMethod& method, const std::optional<size_t>& index, auto* type) -> decltype(type) {
    return index ? method.output<std::remove_const_t<std::remove_pointer_t<decltype(type)>>>(*index) : nullptr;
  };
  constexpr const float* kFloats = nullptr;
  constexpr const int64_t* kIntegers = nullptr;
  const Signature& signature = ran_->signature();
  const Shapes& shapes = program_->shapes();
  sf_results results = {};
  results.survivors = real;
  results.vocab_size = shapes.vocab_size;
  results.num_streams = shapes.num_streams;
  results.top_k = shapes.top_k;
  results.logits = of(*ran_, signature.logits, kFloats);
  results.best = of(*ran_, signature.best, kIntegers);
  results.kept = kept_.data();
  if (streamed_ != nullptr && streamed_->signature().stream_ids) {
    const Signature& streams = streamed_->signature();
    results.carrying = streams.is_streams() ? 1 : std::min(streams.carrying, real);
    results.stream_ids = of(*streamed_, streams.stream_ids, kIntegers);
    results.stream_log_probs = of(*streamed_, streams.stream_log_probs, kFloats);
  }
  return results;
}

// The last run's new keys or values of one cache; sets `by_place` if its rows are in the order of `kept`.
const uint8_t* Sequence::new_rows(size_t cache, bool& by_place) const {
  const Signature& s = ran_->signature();
  const int64_t from_top = program_->shapes().layers - static_cast<int64_t>(cache / 2),
                msa = program_->num_msa_layers();
  const int64_t rows = s.outputs[s.new_rows + cache].shape[0];
  by_place = s.kept && (msa >= 0 ? from_top <= msa : rows != s.rows);
  if (by_place != (rows == s.keep) && s.keep != s.rows)
    throw Failure(SF_EXECUTION, "method " + s.name + ": the rows of layer " + std::to_string(cache / 2) +
                                    " do not match its pruning");
  return ran_->output<uint8_t>(s.new_rows + cache);
}

void Sequence::commit(const int32_t* rows, int n) {
  if (!can_commit_) throw Failure(SF_NOT_KEPT, "there is no run to commit from");
  const Shapes& shapes = program_->shapes();
  if (n < 0 || (n > 0 && rows == nullptr)) bad_argument("commit takes a list of rows");
  places_.clear();
  for (int i = 0; i < n; ++i) {
    const auto found = std::find(kept_.begin(), kept_.end(), rows[i]);
    if (found == kept_.end())
      throw Failure(SF_NOT_KEPT, "row " + std::to_string(rows[i]) + " of the last run was pruned");
    places_.push_back(found - kept_.begin());
  }
  if (length_ + n > shapes.capacity)
    throw Failure(SF_CONTEXT_FULL, "the cache holds " + std::to_string(length_) + " of " +
                                       std::to_string(shapes.capacity) + " positions and cannot take " +
                                       std::to_string(n) + " more");
  if (shapes.int8_cache()) {
    for (size_t c = 0; c < caches_.size(); ++c)
      (c % 2 == 0 ? prefetch_key : prefetch_value)(shapes.kv(c), length_ % shapes.kv(c).capacity,
                                                   caches_[c].as<uint8_t>());
  }
  for (size_t c = 0; c < caches_.size(); ++c) {
    bool by_place;
    const uint8_t* const source = new_rows(c, by_place);
    for (int i = 0; i < n; ++i)
      write_row(c, length_ + i, source + (by_place ? places_[static_cast<size_t>(i)] : rows[i]) * shapes.row_bytes(c));
  }
  length_ += n;
  oldest_ = std::max(oldest_, length_ - shapes.ring());
}

void Sequence::write_row(size_t cache, int64_t position, const uint8_t* row) {
  const Shapes& shapes = program_->shapes();
  uint8_t* const to = caches_[cache].as<uint8_t>();
  const KvShape kv = shapes.kv(cache);
  const int64_t place = position % kv.capacity;
  if (!shapes.int8_cache())
    std::memcpy(to + place * shapes.row_bytes(cache), row, static_cast<size_t>(shapes.row_bytes(cache)));
  else if (cache % 2 == 0)
    store_key(kv, reinterpret_cast<const float*>(row), place, to);
  else
    store_value(kv, reinterpret_cast<const float*>(row), place, to);
}

void Sequence::truncate(int64_t length) {
  if (length < 0 || length > length_)
    bad_argument("cannot truncate to " + std::to_string(length) + ": the cache holds " + std::to_string(length_) +
                 " positions");
  if (length > 0 && length < oldest_state())
    bad_argument("cannot truncate to " + std::to_string(length) +
                 ": layers with linear attention have no state before " + std::to_string(oldest_state()) +
                 " positions; truncate to 0 and run the tokens again");
  if (truncatable(length) != length)
    bad_argument("cannot truncate to " + std::to_string(length) + ": layers that keep a window of " +
                 std::to_string(program_->shapes().window) + " positions have only those from " +
                 std::to_string(oldest_) + " on; truncate to 0 and run the tokens again");
  length_ = length;
  if (length == 0) oldest_ = 0;
  if (length < ran_at_length_) can_commit_ = false;
  // `streams` may have updated states to rows that the next commit replaces.
  for (const Block& states : states_) rewind_states(states.as<float>(), length);
}

// The smallest length, except 0, that all layers with linear attention can go back to (gated_delta_rule.h).
int64_t Sequence::oldest_state() const {
  float oldest = 0.0f;
  for (const Block& states : states_) oldest = std::max(oldest, states.as<float>()[0]);
  return oldest <= 0x1p24f ? static_cast<int64_t>(oldest) : length_ + 1;
}

int64_t Sequence::truncatable(int64_t length) const {
  length = std::clamp(length, int64_t{0}, length_);
  if (length < oldest_state()) return 0;
  for (const Block& states : states_)  // its next rows must not be overwritten
    if (states.as<float>()[0] < static_cast<float>(oldest_)) return 0;
  return oldest_ <= std::max(int64_t{0}, length - program_->shapes().window) ? length : 0;
}

void Sequence::trim() {
  if (length_ != 0) bad_argument("the cache is not empty: truncate it to 0 first");
  ran_ = streamed_ = nullptr;  // their results go with the rest
  can_commit_ = false;
  for (Block& cache : caches_) cache.release();
  for (Block& states : states_) states.release();
  arena_.release();
  streams_arena_.release();
  for (const auto& [name, method] : methods_) method->release();
}

// Calls `take` with the contiguous parts of a cache that contain its first `length` positions.
template <typename Take>
void Sequence::for_each_part(size_t cache, int64_t length, const Take& take) const {
  const Shapes& shapes = program_->shapes();
  uint8_t* const first = caches_[cache].as<uint8_t>();
  const auto part = [&](int64_t at, int64_t bytes) { take(first + at, static_cast<size_t>(bytes)); };
  const KvShape kv = shapes.kv(cache);
  if (!shapes.int8_cache()) return part(0, std::min(length, kv.capacity) * shapes.position_bytes(cache));
  const int64_t blocks = std::min((length + kCacheBlock - 1) / kCacheBlock, kv.blocks());
  const int64_t positions = blocks * kCacheBlock;
  for (int64_t head = 0; head < kv.kv_heads; ++head) {
    if (cache % 2 == 0) {
      part(kv.keys_of(head), positions * kv.key_bytes());
      continue;
    }
    for (int64_t tile = 0; tile < kv.value_tiles(); ++tile)
      part(kv.values_of(head) + tile * kv.blocks() * kQ8TileBytes, blocks * kQ8TileBytes);
    part(kv.scales_of(head), positions * static_cast<int64_t>(sizeof(float)));
  }
}

uint64_t Sequence::bytes_of(int64_t length) const {
  const Shapes& shapes = program_->shapes();
  if (length < 0 || length > shapes.capacity)
    bad_argument("the cache holds " + std::to_string(shapes.capacity) + " positions, not " + std::to_string(length));
  uint64_t bytes = (shapes.has_rings() ? sizeof oldest_ : 0) +
                   static_cast<uint64_t>(shapes.num_states) * static_cast<uint64_t>(shapes.state_bytes());
  for (size_t c = 0; c < caches_.size(); ++c) for_each_part(c, length, [&](uint8_t*, size_t part) { bytes += part; });
  return bytes;
}

// Zeroes the places among the first `length` positions of a cache that hold no position of the text. Rows of an earlier
// text stay there until others overwrite them, and a saved cache has whole blocks and whole rings.
void Sequence::clear_unused(size_t cache, int64_t length) {
  const Shapes& shapes = program_->shapes();
  const KvShape kv = shapes.kv(cache);
  const bool is_ring = kv.capacity < shapes.capacity;
  if (shapes.int8_cache()) length = (length + kCacheBlock - 1) / kCacheBlock * kCacheBlock;
  const std::vector<uint8_t> zeros(static_cast<size_t>(shapes.row_bytes(cache)));
  for (int64_t place = is_ring ? 0 : length_; place < std::min(length, kv.capacity); ++place) {
    const int64_t last = place + (length_ - 1 - place) / kv.capacity * kv.capacity;  // the position that is stored here
    if (place >= length_ || last < oldest_) write_row(cache, place, zeros.data());
  }
}

// If the newer state of a layer has seen more than `length` tokens, replaces it by the older one.
void Sequence::rewind_states(float* states, int64_t length) const {
  const auto size = static_cast<size_t>(program_->shapes().state_size);
  if (states[size] > static_cast<float>(length)) std::memcpy(states + size, states, size * sizeof(float));
}

void Sequence::save(int64_t length, const std::function<void(const void* data, uint64_t bytes)>& put) {
  if (length < 0 || length > length_ || truncatable(length) != length) bad_argument("these cache rows cannot be saved");
  if (program_->shapes().has_rings()) put(&oldest_, sizeof oldest_);
  for (size_t c = 0; c < caches_.size(); ++c) {
    clear_unused(c, length);
    for_each_part(c, length, put);
  }
  const std::vector<uint8_t> none(length == 0 && !states_.empty() ? states_[0].bytes() : 0);
  for (const Block& states : states_) {
    if (length > 0) rewind_states(states.as<float>(), length);
    put(length > 0 ? states.data() : none.data(), states.bytes());
  }
}

void Sequence::load(int64_t length, const std::function<void(void* data, uint64_t bytes)>& get) {
  const Shapes& shapes = program_->shapes();
  if (length_ != 0 || length < 0 || length > shapes.capacity) bad_argument("these cache rows do not fit this engine");
  int64_t oldest = 0;
  if (shapes.has_rings()) get(&oldest, sizeof oldest);
  if (oldest < 0 || oldest > std::max(int64_t{0}, length - shapes.window))
    bad_argument("these cache rows do not fit this engine: the first one is " + std::to_string(oldest));
  for (size_t c = 0; c < caches_.size(); ++c) for_each_part(c, length, get);
  for (const Block& states : states_) {
    get(states.data(), states.bytes());
    const float older = states.as<float>()[0], newer = states.as<float>()[shapes.state_size];
    const bool whole = older == std::floor(older) && newer == std::floor(newer);
    if (whole && older >= static_cast<float>(oldest) && older <= newer && newer <= static_cast<float>(length)) continue;
    for (const Block& each : states_) std::memset(each.data(), 0, each.bytes());
    bad_argument("these cache rows do not fit this engine: the states of a layer are after " + std::to_string(older) +
                 " and " + std::to_string(newer) + " tokens");
  }
  length_ = length;
  oldest_ = std::max(oldest, length - shapes.ring());
  can_commit_ = false;
}

#ifdef STREAMFUSE_NO_ETDUMP
void Sequence::profile(bool on) {
  if (on) bad_argument("this library has no profiler: it was built with STREAMFUSE_ETDUMP=OFF");
}

const std::vector<uint8_t>& Sequence::profile_data() { bad_argument("no profile is being taken"); }
#else
void Sequence::profile(bool on) {
  if (on == (tracer_ != nullptr)) return;
  ran_ = streamed_ = nullptr;
  can_commit_ = false;  // methods share the memory of inputs and outputs
  auto tracer = on ? std::make_unique<Tracer>() : nullptr;
  Methods methods;
  try {
    methods = load_methods(tracer.get(), nullptr);  // the present ones stay until all of these are loaded
  } catch (const Failure& failure) {
    throw Failure(failure.code, std::string("the profile cannot be ") + (on ? "started" : "ended") +
                                    "; the methods stay as they are: " + failure.what());
  }
  free_methods();
  methods_ = std::move(methods);
  tracer_ = std::move(tracer);
}

const std::vector<uint8_t>& Sequence::profile_data() {
  if (tracer_ == nullptr) bad_argument("no profile is being taken");
  const executorch::etdump::ETDumpResult dump = tracer_->get_etdump_data();
  const auto* bytes = static_cast<const uint8_t*>(dump.buf);
  profile_data_.assign(bytes, bytes + (dump.buf == nullptr ? 0 : dump.size));
  std::free(dump.buf);
  tracer_->reset();
  return profile_data_;
}
#endif

}  // namespace streamfuse
