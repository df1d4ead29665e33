--- Lists words and phrases that mean the same to a search of help: a group on each line, separated by commas.
return [[
top-5, top 5, top5, top-k, topk, top_k
gpu, cuda
multi gpu, multi-gpu, multigpu, multiple gpus, several gpus, two gpus, data parallel
two machines, several machines, multiple machines, multi node, multi-node, multiple nodes, cluster
fsdp, fully sharded, deepspeed, shard parameters, tensor parallel, pipeline parallel, model parallel
nginx, openresty, web server, inference server, server, serving, serve, deploy, deployment, rest api, http
custom, my own, your own, own
freeze, frozen
early stopping, early stop, earlystopping, stop early
imbalanced, imbalance, unbalanced, rare classes, class weights
memory use, memory usage, memory consumption, less memory, gpu memory, save gpu memory, save memory
out of memory, oom, memory runs out, not enough memory
fine-tune, finetune, fine tuning, fine-tuning, finetuning, transfer learning, pretrained
mixed precision, amp, fp16, bf16, half precision, autocast, half precision training, fp16 training, bf16 training
resume, continue training, restart training
export, onnx, torchscript, convert onnx, convert to onnx, convert from onnx, convert model
augmentation, augment
reproducible, reproducibility, deterministic, seed
number of parameters, count parameters, parameter count, model summary
logging, wandb, weights and biases, tensorboard
learning rate, lr
schedule, lr_scheduler
warmup, warm up, warm-up, warms up
gradient, grad
image, picture, photo
weight decay, l2 regularization, l2 penalty, regularization
nan, inf, diverge, numerical stability, numerically stable, stability
quantization, quantize, int8
slow, profile, bottleneck
hang, stuck, deadlock
tabular, csv, pandas, dataframe, spreadsheet
categorical, category, one hot, one-hot
gan, dcgan, adversarial
reinforcement learning, rl, dqn, ppo, policy
diffusion, ddpm
object detection, detector, bounding box
cross validation, cross-validation, k-fold, kfold, k fold
validation, evaluate, evaluation, test set
sequence, time series, variable length
save, store
load, read
embedding, word vectors, word2vec
lookup table, embedding lookup, embedding table
bmm, matmul, batch matrix multiply, batch matrix multiplication, batched matrix multiplication, batch matmul
make a tensor, numpy array to tensor, numpy to tensor, array to tensor, list to tensor, from numpy
chat, chatbot, llm, language model
exponential moving average, ema, averaged weights, swa
error, exception, crash
average pooling, average pool, avg pool
transposed convolution, transpose convolution, conv transpose, deconvolution
gaussian, normal distribution
matrix, matrices
triangular matrix, lower triangle, tril, triu
dot product, lm dot
no grad, disable gradient, without gradient, turn off gradient
activation checkpointing, gradient checkpointing, compute a part again
gamma function, lgamma, mvlgamma
animated gif, decode gif, frames of a gif
sentence piece, sentencepiece, subword, byte pair
positional encoding, positional embedding, position embedding, positions, rotary
nil, none
]]
