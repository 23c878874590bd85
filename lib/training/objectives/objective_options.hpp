#pragma once
// Objectives by name, and the options of those of preferences.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/types/named_values.hpp"
#include "lib/templates/chat/conversation_options.hpp"

namespace fsdp {

enum class ObjectiveKind : std::uint8_t {
  next_token,
  dpo,    ///< direct preference optimization, and losses of its kind, with a reference
  orpo,   ///< odds ratio preference optimization (Hong et al., arXiv:2403.07691)
  simpo,  ///< simple preference optimization (Meng et al., arXiv:2405.14734)
  cpo     ///< contrastive preference optimization (Xu et al., arXiv:2401.08417)
};
inline constexpr std::array kObjectiveNames{
    NamedValue<ObjectiveKind>{"next-token", ObjectiveKind::next_token},
    NamedValue<ObjectiveKind>{"dpo", ObjectiveKind::dpo}, NamedValue<ObjectiveKind>{"orpo", ObjectiveKind::orpo},
    NamedValue<ObjectiveKind>{"simpo", ObjectiveKind::simpo}, NamedValue<ObjectiveKind>{"cpo", ObjectiveKind::cpo}};

/// Losses of a preference with a reference; names are TRL's.
enum class DpoLoss : std::uint8_t {
  sigmoid,       ///< Rafailov et al., arXiv:2305.18290
  hinge,         ///< Zhao et al., arXiv:2305.10425
  ipo,           ///< Azar et al., arXiv:2310.12036, with means over tokens
  exo_pair,      ///< Ji et al., arXiv:2402.00856
  nca_pair,      ///< Chen et al., arXiv:2402.05369
  robust,        ///< Chowdhury et al., arXiv:2403.00409
  sigmoid_norm,  ///< with means over tokens
  apo_zero,      ///< D'Oosterlinck et al., arXiv:2408.06266
  apo_down,
  sppo_hard,  ///< Wu et al., arXiv:2405.00675, with a probability of 1 that the chosen side wins
  bco_pair    ///< Jung et al., arXiv:2404.04656, without the shift by running means
};
inline constexpr std::array kDpoLossNames{NamedValue<DpoLoss>{"sigmoid", DpoLoss::sigmoid},
                                          NamedValue<DpoLoss>{"hinge", DpoLoss::hinge},
                                          NamedValue<DpoLoss>{"ipo", DpoLoss::ipo},
                                          NamedValue<DpoLoss>{"exo_pair", DpoLoss::exo_pair},
                                          NamedValue<DpoLoss>{"nca_pair", DpoLoss::nca_pair},
                                          NamedValue<DpoLoss>{"robust", DpoLoss::robust},
                                          NamedValue<DpoLoss>{"sigmoid_norm", DpoLoss::sigmoid_norm},
                                          NamedValue<DpoLoss>{"apo_zero", DpoLoss::apo_zero},
                                          NamedValue<DpoLoss>{"apo_down", DpoLoss::apo_down},
                                          NamedValue<DpoLoss>{"sppo_hard", DpoLoss::sppo_hard},
                                          NamedValue<DpoLoss>{"bco_pair", DpoLoss::bco_pair}};

struct WeightedDpoLoss {
  DpoLoss loss = DpoLoss::sigmoid;
  double weight = 1;
};

struct ObjectiveOptions {
  HeadKind head = HeadKind::next_token;
  double center_rewards = 0;  ///< of reward: weight of the squared sum of both rewards (Eisenstein et al.,
                              ///< arXiv:2312.09244)
  ObjectiveKind kind = ObjectiveKind::next_token;
  std::vector<WeightedDpoLoss> dpo_losses{WeightedDpoLoss{}};  ///< of dpo
  double beta = 0.1;                                           ///< of rewards; of orpo the weight of the odds ratio
  double label_smoothing = 0;                                  ///< of robust and exo_pair
  double sft_weight = -1;    ///< of the mean loss of the chosen tokens; negative: 1 for orpo and cpo, else 0
  double simpo_gamma = 0.5;  ///< margin of the rewards of simpo
  std::string reference;     ///< weights that dpo compares with: a directory; empty: those that the run begins with

  bool has_scores() const { return head != HeadKind::next_token; }
  /// True if the head predicts tokens and an objective compares answers.
  bool compares_answers() const { return kind != ObjectiveKind::next_token; }
  /// True if the rows are preferences.
  bool has_preferences() const { return compares_answers() || head == HeadKind::reward; }
  bool has_reference() const { return kind == ObjectiveKind::dpo; }
};

}  // namespace fsdp
