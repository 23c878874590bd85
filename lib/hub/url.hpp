#pragma once
#include <string>
#include <string_view>

namespace fsdp {

/// Percent-encodes all but letters, digits and "-._~" (RFC 3986), and the characters of `keep`.
std::string percent_encode(std::string_view text, std::string_view keep = {});

/// "scheme://host:port" in lower case with the port always written: what a secret may be sent to.
/// \throws IoError when `url` is not an absolute http or https URL
std::string url_origin(const std::string& url);

/// `reference` (absolute, or relative as in a Location header) as seen from `base`. \throws IoError
std::string resolve_url(const std::string& base, const std::string& reference);

/// `url` without user, password, query and fragment: what may be logged (the query of a signed URL is a secret).
std::string loggable_url(const std::string& url);

/// User and password of `url` as they stand there, for keeping them out of messages; "" without.
std::string_view url_credentials(std::string_view url);

/// Host of `url`, for messages.
std::string url_host(const std::string& url);

}  // namespace fsdp
