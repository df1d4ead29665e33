-- Written by scripts/dev/golden/gen_models.py with torchvision 0.29.2+cu132.
return {
  alexnet = {
    parameters = 61100840, entries = 16, names = "2a857a35ebf86709a976562b650cbb1a", largest = 3.32730889,
    logits = {1.8552395, -3.214608, 1.2104527, 1.9025483, -3.2680142, 0.99676114},
  },
  vgg11 = {
    parameters = 132863336, entries = 22, names = "2ccad5990fdc58222bb8209da328c1c4", largest = 4.61462975,
    logits = {3.5490525, -4.1695457, 0.49604583, 3.5980823, -4.1474891, 0.11344974},
  },
  vgg13 = {
    parameters = 133047848, entries = 26, names = "f3b297a59dc8beb12585af35379669d5", largest = 38.9801025,
    logits = {11.90543, 26.915304, -37.423874, 8.9889107, 29.085962, -36.59613},
  },
  vgg16 = {
    parameters = 138357544, entries = 32, names = "22450ce77402e38d497a616a42d461f6", largest = 245.113876,
    logits = {-39.918198, 231.57755, -180.71915, -59.134529, 237.3251, -166.87958},
  },
  vgg19 = {
    parameters = 143667240, entries = 38, names = "d34b3bead63223bc71c7ca221fc46a83", largest = 1512.71973,
    logits = {-872.73547, 1502.0682, -558.82172, -969.31573, 1482.8788, -443.74136},
  },
  vgg11_bn = {
    parameters = 132868840, entries = 62, names = "88f0a09d46f9e469a3e849bfacb24039", largest = 3.34401989,
    logits = {1.5894713, -3.3310781, 1.3605084, 1.9305158, -3.1346271, 1.2615095},
  },
  vgg13_bn = {
    parameters = 133053736, entries = 76, names = "ad9fe2899ba4b8a4741077233e811958", largest = 3.14534187,
    logits = {1.5953089, -3.0094824, 1.3467009, 1.9351497, -2.9448667, 1.03886},
  },
  vgg16_bn = {
    parameters = 138365992, entries = 97, names = "d0dcf52a4b5cd641ff99513ea46725a4", largest = 3.59941626,
    logits = {2.3120766, -3.3762803, 1.0636369, 2.3599336, -3.4747443, 0.70661235},
  },
  vgg19_bn = {
    parameters = 143678248, entries = 118, names = "6d6b1758baef4964a76c475b75c587a9", largest = 3.47905421,
    logits = {1.6913658, -3.4745717, 1.3733288, 1.9594436, -3.3095322, 1.2958581},
  },
  resnet18 = {
    parameters = 11689512, entries = 122, names = "d47788c36cfe817e7a59c494c1e3a9c8", largest = 326129.562,
    logits = {55093.93, 135415.52, 206742.88, 264338.59, 304377.25, 324199.53},
  },
  resnet34 = {
    parameters = 21797672, entries = 218, names = "4f26a6ab55d465e89d2bc6895d0f945c", largest = 2.88603955e+10,
    logits = {1.8240992e+08, 7.552086e+09, 1.4420162e+10, 2.0330463e+10, 2.4890436e+10, 2.7797209e+10},
  },
  resnet50 = {
    parameters = 25557032, entries = 320, names = "816a54f964854a17b2161814e4b7061c", largest = 31368.9805,
    logits = {57.404469, 26982.359, 27550.936, 1207.7748, -26315.107, -28133.361},
  },
  resnet101 = {
    parameters = 44549160, entries = 626, names = "3ba40420c6f51908169e4740502dc9ef", largest = 7.89057178e+09,
    logits = {2.7528544e+08, 6.9164831e+09, 6.801666e+09, 42986360, -6.7576817e+09, -6.9574523e+09},
  },
  resnet152 = {
    parameters = 60192808, entries = 932, names = "daf825b511b263a29dbf807aa4520117", largest = 9.11839811e+14,
    logits = {1.7278799e+13, 7.9217377e+14, 7.9327395e+14, 1.9504843e+13, -7.7331651e+14, -8.1076299e+14},
  },
  mobilenet_v2 = {
    parameters = 3504872, entries = 314, names = "c2f352f78de91b6fed28adb9f278244e", largest = 3.38555145,
    logits = {0.38272828, -2.3812954, 3.2813258, -2.7840569, 1.4171127, 0.83298558},
  },
}
