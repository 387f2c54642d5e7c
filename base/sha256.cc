#include "base/sha256.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace isthmus {

struct Sha256::State {
  EVP_MD_CTX* context = nullptr;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  state_->context = EVP_MD_CTX_new();
  ISTHMUS_CHECK(state_->context != nullptr);
  ISTHMUS_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(state_->context); }

void Sha256::Update(const void* data, size_t size) {
  ISTHMUS_CHECK(EVP_DigestUpdate(state_->context, data, size) == 1);
}

void Sha256::Update(absl::string_view bytes) { Update(bytes.data(), bytes.size()); }

void Sha256::UpdateU64(uint64_t value) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
  Update(bytes, sizeof(bytes));
}

void Sha256::UpdateSized(absl::string_view bytes) {
  UpdateU64(bytes.size());
  Update(bytes);
}

std::string Sha256::Finish() {
  std::string digest(kSha256Bytes, '\0');
  ISTHMUS_CHECK(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(&digest[0]),
                                   nullptr) == 1);
  return digest;
}

std::string Sha256Of(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

std::string HexPrefix(absl::string_view bytes, size_t chars) {
  return absl::BytesToHexString(bytes).substr(0, chars);
}

std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  ISTHMUS_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&bytes[0]), static_cast<int>(size)) ==
                1);
  return bytes;
}

}  // namespace isthmus
