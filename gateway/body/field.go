package body

import "bytes"

// field is a top-level field that the gateway acts on.
type field uint8

const (
	unknown field = iota
	fModel
	fStream
	fStreamOptions
	fN
	fBestOf
	fMaxCompletionTokens
	fMaxTokens
	fMaxOutputTokens
	fSamplingParams
	fEcho
	fLogprobs
	fTopLogprobs
	fPromptLogprobs
	fReturnLogprob
	fLogprobStartLen
	fTopLogprobsNum
	fReturnTokenIDs
	fMessages
	fPrompt
	fPromptEmbeds
	fInput
	fInputIDs
	fInputEmbeds
	fText
	fTools
	fFunctions
	fSystem
	fInstructions
	fImageData
	fAudioData
	fVideoData
	fUser
	fPromptCacheKey
	fPreviousResponseID
	fLoraPath
	fCacheSalt
	fExtraKey
	fPriority
	fKVTransferParams
	fRoutedDPRank
	fDataParallelRank
	fEngine // any other engine field, known by its name's form
	fieldCount
)

// fieldName is the name of each field; fieldOf is its reverse.
func fieldName(f field) string {
	return [fieldCount]string{
		fModel: "model", fStream: "stream", fStreamOptions: "stream_options", fN: "n", fBestOf: "best_of",
		fMaxCompletionTokens: "max_completion_tokens", fMaxTokens: "max_tokens", fMaxOutputTokens: "max_output_tokens",
		fSamplingParams: "sampling_params", fEcho: "echo", fLogprobs: "logprobs", fTopLogprobs: "top_logprobs",
		fPromptLogprobs: "prompt_logprobs", fReturnLogprob: "return_logprob", fLogprobStartLen: "logprob_start_len",
		fTopLogprobsNum: "top_logprobs_num", fReturnTokenIDs: "return_token_ids", fMessages: "messages", fPrompt: "prompt",
		fPromptEmbeds: "prompt_embeds", fInput: "input", fInputIDs: "input_ids", fInputEmbeds: "input_embeds", fText: "text",
		fTools: "tools", fFunctions: "functions", fSystem: "system", fInstructions: "instructions",
		fImageData: "image_data", fAudioData: "audio_data", fVideoData: "video_data",
		fUser: "user", fPromptCacheKey: "prompt_cache_key", fPreviousResponseID: "previous_response_id",
		fLoraPath: "lora_path", fCacheSalt: "cache_salt", fExtraKey: "extra_key", fPriority: "priority",
		fKVTransferParams: "kv_transfer_params", fRoutedDPRank: "routed_dp_rank", fDataParallelRank: "data_parallel_rank",
		fEngine: "bootstrap_room",
	}[f]
}

// fieldOf tells which field a key (without quotes, escapes decoded) names. A switch, since the compiler turns
// it into comparisons by length first, which costs an unknown key next to nothing.
func fieldOf(key []byte) field {
	switch string(key) {
	case "model":
		return fModel
	case "stream":
		return fStream
	case "stream_options":
		return fStreamOptions
	case "n":
		return fN
	case "best_of":
		return fBestOf
	case "max_completion_tokens":
		return fMaxCompletionTokens
	case "max_tokens":
		return fMaxTokens
	case "max_output_tokens":
		return fMaxOutputTokens
	case "sampling_params":
		return fSamplingParams
	case "echo":
		return fEcho
	case "logprobs":
		return fLogprobs
	case "top_logprobs":
		return fTopLogprobs
	case "prompt_logprobs":
		return fPromptLogprobs
	case "return_logprob":
		return fReturnLogprob
	case "logprob_start_len":
		return fLogprobStartLen
	case "top_logprobs_num":
		return fTopLogprobsNum
	case "return_token_ids":
		return fReturnTokenIDs
	case "messages":
		return fMessages
	case "prompt":
		return fPrompt
	case "prompt_embeds":
		return fPromptEmbeds
	case "input":
		return fInput
	case "input_ids":
		return fInputIDs
	case "input_embeds":
		return fInputEmbeds
	case "text":
		return fText
	case "tools":
		return fTools
	case "functions":
		return fFunctions
	case "system":
		return fSystem
	case "instructions":
		return fInstructions
	case "image_data":
		return fImageData
	case "audio_data":
		return fAudioData
	case "video_data":
		return fVideoData
	case "user":
		return fUser
	case "prompt_cache_key":
		return fPromptCacheKey
	case "previous_response_id":
		return fPreviousResponseID
	case "lora_path":
		return fLoraPath
	case "cache_salt":
		return fCacheSalt
	case "extra_key":
		return fExtraKey
	case "priority":
		return fPriority
	case "kv_transfer_params":
		return fKVTransferParams
	case "routed_dp_rank":
		return fRoutedDPRank
	case "data_parallel_rank":
		return fDataParallelRank
	}
	if bytes.HasPrefix(key, []byte("bootstrap_")) || bytes.HasSuffix(key, []byte("dp_rank")) || bytes.HasPrefix(key, []byte("data_parallel_rank")) {
		return fEngine
	}
	return unknown
}

// steers says whether a client could direct an engine by f: where it runs, before whom, and what it shares.
func (f field) steers() bool { return f >= fCacheSalt && f <= fEngine }
