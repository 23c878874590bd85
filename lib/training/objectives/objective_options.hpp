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
  cpo,    ///< contrastive preference optimization (Xu et al., arXiv:2401.08417)
  kto     ///< Kahneman-Tversky optimization of judged answers (Ethayarajh et al., arXiv:2402.01306), with a reference
};
inline constexpr std::array kObjectiveNames{NamedValue<ObjectiveKind>{"next-token", ObjectiveKind::next_token},
                                            NamedValue<ObjectiveKind>{"dpo", ObjectiveKind::dpo},
                                            NamedValue<ObjectiveKind>{"orpo", ObjectiveKind::orpo},
                                            NamedValue<ObjectiveKind>{"simpo", ObjectiveKind::simpo},
                                            NamedValue<ObjectiveKind>{"cpo", ObjectiveKind::cpo},
                                            NamedValue<ObjectiveKind>{"kto", ObjectiveKind::kto}};

/// Losses of judged answers; names are TRL's.
enum class KtoLoss : std::uint8_t {
  kto,
  apo_zero_unpaired  ///< D'Oosterlinck et al., arXiv:2408.06266, which needs no divergence from the reference
};
inline constexpr std::array kKtoLossNames{NamedValue<KtoLoss>{"kto", KtoLoss::kto},
                                          NamedValue<KtoLoss>{"apo_zero_unpaired", KtoLoss::apo_zero_unpaired}};

struct DpoLoss;  // pair_losses.hpp

struct WeightedDpoLoss {
  const DpoLoss* loss;
  double weight = 1;
};

struct ObjectiveOptions {
  HeadKind head = HeadKind::next_token;
  double center_rewards = 0;  ///< of reward: weight of the squared sum of both rewards (Eisenstein et al.,
                              ///< arXiv:2312.09244)
  ObjectiveKind kind = ObjectiveKind::next_token;
  std::vector<WeightedDpoLoss> dpo_losses;  ///< of dpo; empty: sigmoid
  double beta = 0.1;                        ///< of rewards; of orpo the weight of the odds ratio
  double label_smoothing = 0;               ///< of robust and exo_pair
  double sft_weight = -1;    ///< of the mean loss of the chosen tokens; negative: 1 for orpo and cpo, else 0
  double simpo_gamma = 0.5;  ///< margin of the rewards of simpo
  KtoLoss kto_loss = KtoLoss::kto;
  double desirable_weight = 1, undesirable_weight = 1;  ///< of the losses of kto
  std::string reference;  ///< weights that dpo and kto compare with: a directory; empty: those that the run begins with

  bool has_scores() const { return head != HeadKind::next_token; }
  /// True if the head predicts tokens and the rows are judged answers.
  bool judges_answers() const { return kind == ObjectiveKind::kto; }
  /// True if the head predicts tokens and an objective compares answers.
  bool compares_answers() const { return kind != ObjectiveKind::next_token && !judges_answers(); }
  /// True if the rows are preferences.
  bool has_preferences() const { return compares_answers() || head == HeadKind::reward; }
  bool has_reference() const { return kind == ObjectiveKind::dpo || judges_answers(); }
};

}  // namespace fsdp
