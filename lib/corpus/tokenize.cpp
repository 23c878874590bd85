#include "lib/corpus/tokenize.hpp"

#include <chrono>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/corpus/data_files.hpp"
#include "lib/corpus/document_stream.hpp"
#include "lib/corpus/encode_pipeline.hpp"
#include "lib/dataset/token_file_writer.hpp"

namespace fsdp {
namespace {

constexpr auto kPatience = std::chrono::milliseconds(100);

void check(const TokenizeOptions& options) {
  if (options.inputs.empty()) throw UsageError("no input files were named");
  if (options.output.empty()) throw UsageError("no output file was named");
  if (options.threads < 1) throw UsageError(std::to_string(options.threads) + " threads cannot encode");
  if (options.max_rows < 0) throw UsageError("at most " + std::to_string(options.max_rows) + " rows cannot be read");
}

void check_output_is_no_input(const TokenizeOptions& options, const std::vector<std::filesystem::path>& files) {
  for (const auto& file : files) {
    std::error_code error;
    if (std::filesystem::equivalent(file, options.output, error)) {
      throw UsageError(options.output.string() + ": is the output and an input");
    }
  }
}

std::string joined(const std::vector<std::filesystem::path>& paths) {
  std::string text;
  for (const auto& path : paths) {
    if (text.size() > 200) return text + ", ...";
    text += (text.empty() ? "" : ", ") + path.string();
  }
  return text;
}

std::unique_ptr<TokenFileWriter> open_writer(const TokenizeOptions& options, const Tokenizer& tokenizer,
                                             const std::vector<std::filesystem::path>& files) {
  TokenFileNotes notes{options.tokenizer_name, tokenizer.description(), tokenizer.vocab_size(), {}};
  for (const auto& file : files) notes.sources.push_back(file.string());
  return options.documents ? write_token_documents(options.output, notes)
                           : write_packed_rows(options.output, options.seq_len, notes);
}

void add_batch(const detail::EncodedBatch& batch, TokenFileWriter& writer, TokenizeReport& report) {
  std::size_t begin = 0;
  for (const auto end : batch.ends) {
    writer.add(std::span(batch.ids).subspan(begin, end - begin));
    if (begin == end) ++report.empty_documents;
    begin = end;
  }
  report.documents += static_cast<std::int64_t>(batch.ends.size());
  report.tokens += static_cast<std::int64_t>(batch.ids.size());
}

}  // namespace

TokenizeReport tokenize(const TokenizeOptions& options, const Tokenizer& tokenizer,
                        const std::function<void(const TokenizeProgress&)>& progress,
                        const std::function<bool()>& stop_wanted) {
  using State = detail::EncodePipeline::State;
  check(options);
  TokenizeReport report;
  report.files = data_files(options.inputs);
  check_output_is_no_input(options, report.files);
  DocumentStream stream(report.files, options.field, options.max_rows);
  const auto writer = open_writer(options, tokenizer, report.files);
  std::int64_t bytes_read = 0;
  {
    detail::EncodePipeline pipeline(stream, tokenizer, options.threads);
    detail::EncodedBatch batch;
    for (State state = State::waiting; state != State::finished;) {
      if (stop_wanted && stop_wanted()) {
        report.stopped = true;
        return report;
      }
      state = pipeline.next(batch, kPatience);
      if (state == State::ready) {
        add_batch(batch, *writer, report);
        bytes_read = batch.bytes_read;
      }
      if (progress) progress({report.documents, report.tokens, bytes_read, stream.bytes_total()});
    }
  }
  if (report.documents == 0) throw FormatError("no documents in " + joined(report.files));
  report.stopped = !writer->finish(stop_wanted);
  if (!options.documents) {
    report.rows = packed_rows(report.tokens, options.seq_len);
    report.dropped_tokens = report.tokens - report.rows * options.seq_len;
  }
  return report;
}

}  // namespace fsdp
