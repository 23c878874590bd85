#include "lib/encoding/encode_pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/encoding/labels.hpp"
#include "lib/templates/chat/messages.hpp"

namespace fsdp {
namespace {

[[noreturn]] void refuse_half(const std::string& where) {
  throw FormatError(where + " holds " + PythonJson::kHalfProblem);
}

/// Checks the characters of the texts that are read: prompt and completion, or `messages` and what templates read
/// beside them.
void check_characters(const PythonJson& text, const nlohmann::ordered_json& record, const std::string& messages) {
  for (const auto* key : {"prompt", "completion", "tools", "chat_template_kwargs", "conversations", "instruction",
                          "input", "output", "system", "history", "chosen", "rejected"}) {
    if (const auto found = record.find(key); found != record.end() && text.holds_half(*found))
      refuse_half("'" + std::string(key) + "'");
  }
  const auto list = record.find(messages);
  if (list == record.end() || !list->is_array()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto& message = (*list)[i];
    for (const auto* key : {"role", "content"}) {
      if (message.is_object() && message.contains(key) && text.holds_half(message[key]))
        refuse_half("the " + std::string(key) + " of message " + std::to_string(i + 1));
    }
    if (text.holds_half(message)) refuse_half("message " + std::to_string(i + 1));
  }
}

nlohmann::ordered_json parse_record(const std::string& sample, const std::string& messages) {
  const PythonJson text(sample);
  try {
    auto record = text.parse();  // templates print values in the order of the text
    if (!record.is_object()) throw FormatError("holds no object {...}");
    check_characters(text, record, messages);
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(detail::no_json(sample, error.what()));
  }
}

/// A sample of another form than the file's.
struct OtherForm : FormatError {
  explicit OtherForm(DataForm found) : FormatError(detail::name_with_article(found)), form(found) {}
  DataForm form;
};

/// \throws OtherForm for a sample with the keys of another form, and of that alone
void check_form(const nlohmann::ordered_json& record, DataForm form) {
  std::vector<std::string> keys;
  for (const auto& member : record.items()) keys.push_back(member.key());
  if (const auto found = form_of_keys(keys); found && *found != form) throw OtherForm(*found);
}

/// The members of a record that are read, as text.
std::string what_is_read(nlohmann::ordered_json record, const std::vector<std::string>& unread) {
  for (const auto& key : unread) record.erase(key);
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The first id is never a target.
bool has_target(const std::vector<std::uint8_t>& mask) {
  return std::find(mask.begin() + (mask.empty() ? 0 : 1), mask.end(), std::uint8_t{1}) != mask.end();
}

/// 1 for an answer that is wanted, else 0.
std::int32_t judgement_of(const nlohmann::ordered_json& record) {
  const auto label = record.find(kLabelKey);
  if (label == record.end()) throw FormatError(fmt::format("has no '{}', the judgement of the answer", kLabelKey));
  if (label->is_boolean()) return label->get<bool>() ? 1 : 0;
  if (label->is_number_integer() && (*label == 0 || *label == 1)) return label->get<std::int32_t>();
  throw FormatError(fmt::format("'{}' holds {}, expected true for an answer that is wanted, or false", kLabelKey,
                                label->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

/// Puts a judgement after the last id, which then predicts nothing.
void add_judgement(MaskedIds& masked, std::int32_t judgement) {
  masked.ids.push_back(judgement);
  masked.mask.push_back(0);
}

constexpr std::size_t kBatch_bytes = 256 << 10;
constexpr std::size_t kBatch_documents = 1024;
constexpr std::size_t kMostBytesInFlight = std::size_t{256} << 20;

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, ConversationRules rules, EncodeOptions options)
    : tokenizer_(tokenizer), conversations_(tokenizer, std::move(rules)), options_(std::move(options)) {}

void DocumentEncoder::encode_labelled(const nlohmann::ordered_json& record, EncodedSample& out) const {
  const auto& field = options_.text_field;
  const bool has_text = record.contains(field);
  std::vector<std::string> unread;
  for (const auto& member : record.items()) {
    if (member.key() != kLabelKey && member.key() != (has_text ? field : options_.messages_field))
      unread.push_back(member.key());
  }
  out.elsewhere = options_.split.is_on() && !options_.split.reads(what_is_read(record, unread));
  if (out.elsewhere) return;
  out.label = number_of_label(record, options_.labels);
  if (!has_text) {
    if (!record.contains(options_.messages_field)) throw FormatError("has no '" + field + "'");
    out.masked = conversations_.encode_messages(record, options_.messages_field);
  } else {
    if (!record[field].is_string()) throw FormatError("'" + field + "' is no string");
    out.masked.ids = conversations_.encode_text(record[field].get_ref<const std::string&>());
    out.unread = std::move(unread);
  }
}

void DocumentEncoder::encode_record(const std::string& sample, DataForm form, EncodedSample& out) const {
  const auto record = parse_record(sample, options_.messages_field);
  if (form == DataForm::label) return encode_labelled(record, out);
  const bool is_pair = form != DataForm::messages;
  if (options_.messages_field == "messages" && form != DataForm::preference) check_form(record, form);
  if (form == DataForm::preference && !record.contains("chosen")) check_form(record, form);
  auto unread = unread_keys(record, is_pair ? std::string() : options_.messages_field, form == DataForm::preference);
  const bool has_judgement = options_.judged && form == DataForm::prompt_completion;
  if (has_judgement) std::erase(unread, kLabelKey);
  out.elsewhere = options_.split.is_on() && !options_.split.reads(what_is_read(record, unread));
  if (out.elsewhere) return;
  out.unread = unread;
  if (form == DataForm::preference) {
    auto [chosen, rejected] =
        options_.judged ? conversations_.encode_sides(record) : conversations_.encode_preference(record);
    out.masked = std::move(chosen);
    out.rejected = std::move(rejected);
    if (options_.judged) out.label = 1;
  } else {
    if (has_judgement) out.label = judgement_of(record);
    out.masked = has_judgement ? conversations_.encode_answer(record)
                 : is_pair     ? conversations_.encode_pair(record)
                               : conversations_.encode_messages(record, options_.messages_field);
  }
}

/// Cuts what is too long. The prompt is what comes before the first target.
void DocumentEncoder::cut(MaskedIds& masked, EncodedSample& out) const {
  auto& [ids, mask] = masked;
  const auto remove = [&](std::size_t begin, std::size_t count) {
    const auto from_ids = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    ids.erase(from_ids, from_ids + static_cast<std::ptrdiff_t>(count));
    if (!mask.empty()) {
      const auto from_mask = mask.begin() + static_cast<std::ptrdiff_t>(begin);
      mask.erase(from_mask, from_mask + static_cast<std::ptrdiff_t>(count));
    }
    out.cut += static_cast<std::int64_t>(count);
  };
  const auto most_of_prompt = static_cast<std::size_t>(options_.max_prompt_length);
  const bool is_compared = out.rejected || options_.judged;
  if (is_compared && most_of_prompt > 0) {
    const auto prompt = static_cast<std::size_t>(std::find(mask.begin(), mask.end(), std::uint8_t{1}) - mask.begin());
    if (prompt > most_of_prompt) remove(0, prompt - most_of_prompt);
  }
  auto most = static_cast<std::size_t>(options_.max_length);
  if (most > 1 && options_.head != HeadKind::next_token) --most;  // for the target
  if (most == 0 || ids.size() <= most) return;
  const bool keeps_end = is_compared && options_.truncation == Truncation::keep_end;
  remove(keeps_end ? 0 : most, ids.size() - most);
}

/// Leaves a text one target, which follows the last id that is no padding, as transformers'
/// ...ForSequenceClassification finds it.
void DocumentEncoder::set_target(MaskedIds& masked, std::int32_t target) const {
  auto& [ids, mask] = masked;
  while (ids.size() > 1 && ids.back() == options_.padding_id) ids.pop_back();
  mask.assign(ids.size(), 0);
  ids.push_back(target);
  mask.push_back(1);
}

EncodedSample DocumentEncoder::encode(const std::string& sample, DataForm form, const StopTest& stop) const {
  EncodedSample out;
  const bool masked = form != DataForm::text && options_.train_on == TrainOn::answers;
  auto& [ids, mask] = out.masked;
  if (form == DataForm::text) {
    out.elsewhere = !options_.split.reads(sample);
    if (out.elsewhere) return out;
    ids = tokenizer_.encode_document(sample, stop);
  } else {
    encode_record(sample, form, out);
    if (out.elsewhere) return out;
    if (!masked) mask.clear();
  }
  cut(out.masked, out);
  if (out.rejected) cut(*out.rejected, out);
  if (options_.head != HeadKind::next_token) {
    out.counts = !ids.empty() && (!out.rejected || !out.rejected->ids.empty());
    set_target(out.masked, out.label);
    if (out.rejected) set_target(*out.rejected, 0);
    return out;
  }
  if (masked) out.counts = has_target(mask) && (!out.rejected || has_target(out.rejected->mask));
  if (options_.judged) {
    add_judgement(out.masked, out.label);
    if (out.rejected) add_judgement(*out.rejected, 0);
  }
  return out;
}

namespace detail {

EncodePipeline::EncodePipeline(DocumentStream& stream, const DocumentEncoder& encoder, int threads)
    : stream_(stream),
      encoder_(encoder),
      begins_inside_(stream.begins_inside()),
      most_batches_(static_cast<std::size_t>(threads) * 3 + 1) {
  try {
    start_thread("encodes texts", [&] {
      threads_.emplace_back([this] { read(); });
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { encode(); });
    });
  } catch (...) {
    close();
    throw;
  }
}

EncodePipeline::~EncodePipeline() { close(); }

void EncodePipeline::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  room_.notify_all();
  work_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

bool EncodePipeline::fill(Batch& batch) {
  std::string text;
  try {
    while (batch.text_bytes < kBatch_bytes && batch.texts.size() < kBatch_documents) {
      if (!stream_.next(text)) return false;
      batch.text_bytes += text.size();
      batch.places.push_back(stream_.where());
      batch.forms.push_back(stream_.form());
      batch.texts.push_back(std::move(text));
      text = {};
    }
    return true;
  } catch (...) {
    batch.error = std::current_exception();
    return false;
  }
}

void EncodePipeline::read() {
  for (bool more = true; more;) {
    auto batch = std::make_unique<Batch>();
    more = fill(*batch);
    batch->encoded.bytes_read = stream_.bytes_read();
    if (!submit(std::move(batch))) return;
  }
  const std::lock_guard lock(mutex_);
  read_all_ = true;
  work_.notify_all();
  result_.notify_all();
}

bool EncodePipeline::submit(std::unique_ptr<Batch> batch) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] {
    const bool room = batches_in_flight_ < most_batches_ && bytes_in_flight_ + batch->text_bytes <= kMostBytesInFlight;
    return closing_ || batches_in_flight_ == 0 || room;
  });
  if (closing_) return false;
  batch->number = num_batches_++;
  ++batches_in_flight_;
  bytes_in_flight_ += batch->text_bytes;
  queue_.push_back(std::move(batch));
  work_.notify_one();
  return true;
}

void EncodePipeline::encode() {
  while (true) {
    std::unique_ptr<Batch> batch;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return closing_ || read_all_ || !queue_.empty(); });
      if (closing_ || queue_.empty()) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      encode(*batch);
    } catch (...) {
      // This error precedes one that reading met at the end of the batch.
      batch->error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    const auto number = batch->number;
    done_.emplace(number, std::move(batch));
    result_.notify_one();
  }
}

void EncodePipeline::encode(Batch& batch) const {
  auto& encoded = batch.encoded;
  for (std::size_t i = 0; i < batch.texts.size(); ++i) {
    EncodedSample sample;
    try {
      sample = encoder_.encode(batch.texts[i], batch.forms[i], [this] { return closing_.load(); });
    } catch (const OtherForm& other) {
      const auto& place = batch.places[i];
      const auto first = first_json_place(place.substr(0, place.rfind(": ")));
      if (begins_inside_ || first != place_in_file(place))
        throw FormatError(other_form(place, other.form, first, batch.forms[i]));
      throw FormatError(
          place + ": is " + other.what() + ", and " + name_with_article(batch.forms[i]) + " was asked for",
          Remedy::of_form);
    } catch (const Error& error) {
      throw FormatError(batch.places[i] + ": " + error.what(), error.advice());
    }
    if (sample.elsewhere) {
      ++encoded.elsewhere;
      batch.texts[i] = {};
      continue;
    }
    batch.texts[i] = {};
    if (!sample.unread.empty())
      encoded.ignored.add(batch.places[i].substr(0, batch.places[i].rfind(": ")), sample.unread);
    if (sample.cut > 0) ++encoded.cut;
    if (!sample.counts) {
      if (encoded.skipped++ == 0) encoded.first_skipped = batch.places[i];
      continue;
    }
    if (sample.rejected && sample.rejected->ids == sample.masked.ids) ++encoded.equal;
    add_document(std::move(sample.masked), batch.places[i], encoded);
    if (sample.rejected) add_document(std::move(*sample.rejected), batch.places[i], encoded);
  }
}

void EncodePipeline::add_document(MaskedIds masked, const std::string& place, EncodedBatch& encoded) const {
  auto& [ids, mask] = masked;
  const auto vocab_size = encoder_.tokenizer().vocab_size();
  for (const auto id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    throw FormatError(place + ": the tokenizer gives id " + std::to_string(id) +
                      ", which is not in its vocabulary of " + std::to_string(vocab_size) +
                      "; do its files belong together?");
  }
  if (mask.empty()) mask.assign(ids.size(), 1);
  encoded.mask.insert(encoded.mask.end(), mask.begin(), mask.end());
  if (encoded.ids.empty()) {
    encoded.ids = std::move(ids);
  } else {
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
  }
  encoded.ends.push_back(encoded.ids.size());
  encoded.places.push_back(place);
}

EncodePipeline::State EncodePipeline::next(EncodedBatch& batch, std::chrono::milliseconds patience) {
  std::unique_ptr<Batch> done;
  {
    std::unique_lock lock(mutex_);
    const auto all_given = [&] { return read_all_ && next_batch_ == num_batches_; };
    result_.wait_for(lock, patience, [&] { return all_given() || done_.contains(next_batch_); });
    if (all_given()) return State::finished;
    const auto found = done_.find(next_batch_);
    if (found == done_.end()) return State::waiting;
    done = std::move(found->second);
    done_.erase(found);
    ++next_batch_;
    --batches_in_flight_;
    bytes_in_flight_ -= done->text_bytes;
  }
  room_.notify_one();
  if (done->error) std::rethrow_exception(done->error);
  batch = std::move(done->encoded);
  return State::ready;
}

bool encode_all(DocumentStream& stream, const DocumentEncoder& encoder, int threads,
                const std::function<void(const EncodedBatch&)>& take, const std::function<bool()>& stops) {
  using State = EncodePipeline::State;
  constexpr auto kPatience = std::chrono::milliseconds(100);
  EncodePipeline pipeline(stream, encoder, threads);
  EncodedBatch batch;
  for (State state = State::waiting; state != State::finished;) {
    if (stops()) return false;
    state = pipeline.next(batch, kPatience);
    if (state == State::ready) take(batch);
  }
  return true;
}

}  // namespace detail

}  // namespace fsdp
